"""What an operator does to a private RabbitMQ: the calls that rabbitmqctl makes, without a second Erlang machine.

`rabbitmqctl` computes for half a second before it asks the node anything; `erl_call` asks it at once. The functions of
the node are the same ones, with the same arguments. The command itself is `RabbitMQ.ctl`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from workq.lab.servers.server import ServerFailed

_ACTING: Final = '<<"operator">>'
"""Who did it, as RabbitMQ's own log and events tell it."""


class RabbitMQOperator:
    """Users, rights, policies, limits and connections of one node that runs.

    Every function raises `ServerFailed` with the node's own words if the node refuses.
    """

    def __init__(self, evaluate: Callable[[str], str]) -> None:
        """`evaluate`: has the node evaluate an expression (`RabbitMQ.evaluate`)."""
        self._evaluate = evaluate

    def add_user(self, user: str, password: str) -> None:
        """Without any rights, as `rabbitmqctl add_user`."""
        self._do(f"rabbit_auth_backend_internal:add_user({_binary(user)}, {_binary(password)}, {_ACTING}).")

    def set_permissions(self, user: str, configure: str, write: str, read: str, *, vhost: str = "/") -> None:
        """Three patterns, in the place of those that were there."""
        given = ", ".join(map(_binary, (user, vhost, configure, write, read)))
        self._do(f"rabbit_auth_backend_internal:set_permissions({given}, {_ACTING}).")

    def add_vhost(self, vhost: str) -> None:
        """It is there, and runs."""
        self._do(f"rabbit_vhost:add({_binary(vhost)}, {_ACTING}).")

    def delete_vhost(self, vhost: str) -> None:
        """With all that is in it."""
        self._do(f"rabbit_vhost:delete({_binary(vhost)}, {_ACTING}).")

    def set_policy(
        self, name: str, pattern: str, definition: str, *, apply_to: str = "queues", priority: int = 0
    ) -> None:
        """For what has such a name in the default virtual host; the definition is JSON."""
        what = ", ".join(map(_binary, ("/", name, pattern, definition)))
        self._do(f"rabbit_policy:parse_set({what}, {priority}, {_binary(apply_to)}, {_ACTING}).")

    def clear_policy(self, name: str) -> None:
        """Of the default virtual host."""
        self._do(f'rabbit_policy:delete(<<"/">>, {_binary(name)}, {_ACTING}).')

    def set_memory_limit(self, fraction: float) -> None:
        """From which part of the machine's memory on there is an alarm (`vm_memory_high_watermark`)."""
        self._do(f"vm_memory_monitor:set_vm_memory_high_watermark({fraction:.9f}).")

    def set_disk_limit(self, free_bytes: int) -> None:
        """With how little room on the disk there is an alarm (`disk_free_limit`)."""
        self._do(f"rabbit_disk_monitor:set_disk_free_limit({free_bytes}).")

    def close_connections(self, why: str) -> None:
        """All connections of all clients, as `rabbitmqctl close_all_connections --global`."""
        close = f"catch rabbit_networking:close_connection(One, {_binary(why)})"  # it may have ended meanwhile
        self._do(f"[{close} || One <- rabbit_networking:connections()], ok.")

    def queues(self, containing: str) -> list[str]:
        """The names of queues in all virtual hosts that contain this."""
        return self._names("rabbit_amqqueue:list_names()", containing)

    def exchanges(self, containing: str) -> list[str]:
        """The names of exchanges in all virtual hosts that contain this."""
        return self._names("rabbit_exchange:list_names()", containing)

    def _names(self, resources: str, containing: str) -> list[str]:
        fits = f"string:find(Name, {_binary(containing)}) =/= nomatch"
        told = self._evaluate(f"[binary_to_list(Name) || {{resource, _, _, Name}} <- {resources}, {fits}].")
        return re.findall(r'"([^"]*)"', told)

    def _do(self, expression: str) -> None:
        if (told := self._evaluate(expression)) != "ok":
            raise ServerFailed(f"RabbitMQ answered to {expression} with {told}")


def _binary(text: str) -> str:
    """A text, as Erlang writes it."""
    if not (text.isascii() and text.isprintable()):
        raise ValueError(f"not of printable characters of ASCII: {text!r}")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'<<"{escaped}">>'
