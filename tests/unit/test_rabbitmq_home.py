"""Which of the installed plugins a private RabbitMQ sees."""

from __future__ import annotations

from pathlib import Path

from workq.lab.servers.rabbitmq_home import link_plugins

INSTALLED = {
    "rabbit-9.1": "kernel, rabbitmq_prelaunch",
    "ranch-2.1": "kernel",
    "rabbitmq_prelaunch-9.1": "kernel",
    "rabbitmq_management-9.1": "rabbit,\n  rabbitmq_web_dispatch",
    "rabbitmq_web_dispatch-9.1": "rabbit",
    "rabbitmq_mqtt-9.1": "rabbit",
}


def linked(folder: Path, *enabled: str) -> set[str]:
    installed = folder / "usr" / "plugins"
    for name, needed in INSTALLED.items():
        app = installed / name / "ebin" / f"{name.partition('-')[0]}.app"
        app.parent.mkdir(parents=True)
        app.write_text(f"{{application, it, [{{applications, [{needed}]}}]}}.")
    (installed / "rabbitmq_packed-9.1.ez").touch()
    link_plugins(folder / "home" / "plugins", Path("/usr/plugins"), enabled, seen=lambda path: folder / str(path)[1:])
    found = list((folder / "home" / "plugins").iterdir())
    assert all(one.readlink() == Path("/usr/plugins") / one.name for one in found), "as the server sees them"
    return {one.name.partition("-")[0] for one in found}


def test_it_sees_all_libraries_what_they_need_and_what_cannot_be_looked_into(tmp_path: Path) -> None:
    assert linked(tmp_path) == {"rabbit", "ranch", "rabbitmq_prelaunch", "rabbitmq_packed"}


def test_it_sees_an_enabled_plugin_and_all_that_one_needs(tmp_path: Path) -> None:
    here = {"rabbit", "ranch", "rabbitmq_prelaunch", "rabbitmq_packed"}

    assert linked(tmp_path, "rabbitmq_management") == here | {"rabbitmq_management", "rabbitmq_web_dispatch"}
