"""How tasks, events and workers look in JSON, and how a death is told to people. The shapes of the JSON are stable:
names are only added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from workq.cli.show import clean, text_of, write
from workq.ledger import WorkerRow
from workq.values.certificate import Certificate
from workq.values.options import SHOWN
from workq.values.task import Event, Task

_CLAIMS_SHOWN: Final = 20


def task_in_short(task: Task) -> dict[str, Any]:
    """One task in a list: everything but its arguments and result."""
    return {
        "id": task.id,
        "name": task.name,
        "queue": task.queue,
        "state": task.state,
        "attempt": task.attempt,
        "failures": task.failures,
        "failures_max": task.failures_max,
        "crashes": task.crashes,
        "crashes_max": task.crashes_max,
        "key": task.key,
        "job_id": task.job_id,
        "worker": task.worker,
        "cancel_requested": task.is_cancel_requested,
        "reason": task.reason,
        "error": task.error,
        "created_at": task.created_at,
        "due_at": task.due_at,
        "waits_for": task.waits_for,
        "started_at": task.started_at,
        "settled_at": task.settled_at,
        "expires_at": task.expires_at,
        **{one.name: msgspec.to_builtins(getattr(task, one.name)) for one in SHOWN},
        "priority": task.priority,
    }


def task_in_full(
    task: Task, history: list[Event], certificates: Mapping[str, Certificate] | None = None
) -> dict[str, Any]:
    """One task with its arguments, its result, its history, and the deaths of its workers."""
    return {
        **task_in_short(task),
        "args": task.args,
        "kwargs": task.kwargs,
        "result": task.result,
        "history": [event(one) for one in history],
        "deaths": [death(one, (certificates or {}).get(one.worker or "")) for one in history if one.kind == "reaped"],
    }


def event(one: Event) -> dict[str, Any]:
    """One line of a task's history."""
    return {"at": one.at, "kind": one.kind, "attempt": one.attempt, "worker": one.worker, "detail": one.detail}


def death(one: Event, of: Certificate | None) -> dict[str, Any]:
    """One death of a task's worker: the essentials, and the whole certificate as long as it is kept."""
    return {
        "at": one.at,
        "attempt": one.attempt,
        "worker": one.worker,
        **one.detail,
        "certificate": None if of is None else certificate(of),
    }


def certificate(of: Certificate) -> dict[str, Any]:
    """The certificate of a death; what is not known is null."""
    return {
        **{name: getattr(of, name) for name in of.__struct_fields__},
        "oom": None if of.oom is None else {name: getattr(of.oom, name) for name in of.oom.__struct_fields__},
        "claims": [{name: getattr(one, name) for name in one.__struct_fields__} for one in of.claims],
    }


def worker_in_full(one: WorkerRow, running: list[Task]) -> dict[str, Any]:
    """One incarnation with what it runs now, and the certificate of its death."""
    return {
        **worker(one),
        "running": [task_in_short(task) for task in running],
        "certificate": None if one.certificate is None else certificate(one.certificate),
    }


def worker(one: WorkerRow) -> dict[str, Any]:
    """One incarnation."""
    return {
        "id": one.id,
        "state": one.state,
        "host": one.host,
        "pid": one.pid,
        "machine": one.machine,
        "parent": one.parent,
        "memory_bytes": one.memory_bytes,
        "queues": one.queues,
        "threads": one.threads,
        "started_at": one.started_at,
        "beat_at": one.beat_at,
        "beat_age_s": round(one.beat_age_s, 3),
        "ended_at": one.ended_at,
        "evidence": one.evidence,
    }


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
