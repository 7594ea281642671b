"""How the death of a worker process is told to people: the certificate, line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from workq.cli.show import clean, text_of, write
from workq.values.task import Event

_CLAIMS_SHOWN: Final = 20


def write_death(event: Event, certificate: Mapping[str, Any] | None) -> None:
    """One death in the history of a task: what happened, what it cost, what else is known of it."""
    head = f"  {text_of(event.at)}  attempt {event.attempt} on {event.worker}"
    body = [*_told(event.detail), *_company(event.detail, event.task_id, certificate)]
    write(clean(head))
    _write_lines(body)
    _write_stack(event.detail.get("stack"))


def write_certificate(certificate: Mapping[str, Any]) -> None:
    """All that is known of the end of one incarnation."""
    write("certificate:")
    _write_lines(list(_told(certificate)))
    claims = certificate["claims"]
    if not claims:
        return
    write("had claimed:")
    for one in claims[:_CLAIMS_SHOWN]:
        began = "had not started" if not one["started"] else "had started"
        if one["ran_s"] is not None:
            began = f"ran for {one['ran_s']:.1f} s"
        came = f"charged: {one['charged']}; went to {one['state']}"
        write(clean(f"  {one['task_id']}  {one['name']}  attempt {one['attempt']}  {began}; {came}"))
        _write_stack(one["stack"])
    more = len(claims) - _CLAIMS_SHOWN + certificate["claims_more"]
    if more > 0:
        write(f"  and {more} more; -o json has {len(claims)} of them")


def _told(known: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a certificate says, or the essentials of one in a task's history; what is not known is left out."""
    yield "kind", f"{known['kind']}"
    yield "cause", str(known["cause"])
    if known.get("charged") is not None and "state" in known:
        began = "had started" if known.get("started") else "had not started"
        if known.get("ran_s") is not None:
            began = f"had started {known['ran_s']:.1f} s before"
        yield "this task", f"{began}; charged: {known['charged']}; went to {known['state']}"
    if known.get("signal") is not None:
        yield "signal", str(known["signal"])
    if known.get("exit_status") is not None:
        yield "exit status", str(known["exit_status"])
    oom = known.get("oom")
    if oom is not None:
        counted = {"its control group": oom.get("group_kills"), "the machine": oom.get("machine_kills")}
        yield "out of memory", "; ".join(f"{who}: {_kills(count)}" for who, count in counted.items())
    memory = []
    if known.get("memory_bytes") is not None:
        memory.append(
            f"{_mib(known['memory_bytes'])} at its supervisor's last look, {known['memory_age_s']:.1f} s before"
        )
    if known.get("peak_bytes") is not None:
        memory.append(f"{_mib(known['peak_bytes'])} at most")
    if known.get("beat_memory_bytes") is not None:
        memory.append(f"{_mib(known['beat_memory_bytes'])} at its last beat")
    if memory:
        yield "memory", "; ".join(memory)
    if known.get("beat_age_s") is not None:
        yield "last beat", f"{known['beat_age_s']:.1f} s before"
    if known.get("stack_note") is not None:
        yield "stack", str(known["stack_note"])
    for one in known.get("unknown") or ():
        yield "not known", str(one)


def _company(
    detail: Mapping[str, Any], task_id: str | None, certificate: Mapping[str, Any] | None
) -> Iterator[tuple[str, str]]:
    if certificate is None or "kind" not in detail:
        return
    others = [one for one in certificate["claims"] if one["task_id"] != task_id]
    started = [one for one in others if one["started"]]
    if started:
        named = ", ".join(f"{one['name']} {one['task_id']}" for one in started[:3])
        yield "beside it", f"{named}{f' and {len(started) - 3} more' if len(started) > 3 else ''}"
    waited = len(others) - len(started) + certificate["claims_more"]
    if waited:
        yield "only claimed", f"{waited} more"


def _write_lines(pairs: list[tuple[str, str]]) -> None:
    indent = max(len(name) for name, _ in pairs) + 2
    for name, value in pairs:
        write(clean(f"    {name + ':':<{indent}}{value}"))


def _write_stack(stack: str | None) -> None:
    if stack:
        write("    stack, the innermost call first:")
        for line in stack.splitlines():
            write(clean(f"      {line}"))


def _kills(count: int | None) -> str:
    return "cannot be read" if count is None else f"{count} kills counted" if count != 1 else "1 kill counted"


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"
