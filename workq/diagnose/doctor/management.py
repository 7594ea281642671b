"""RabbitMQ's management API: policies that apply to our queues, their members, and alarms. Reads only.

A policy can drop hints without a word to anybody: a time to live, a maximal length, an expiry of the queue. What is
lost is proved by a marker and sent again, so it costs time and no task; still, nobody wants it.

The API is asked at WORKQ_BROKER_MANAGEMENT_URL, or on the host of the broker's URL at port 15672 (15671 with TLS), as
the same user. Where it does not answer, the checks are reported as not done, with the commands that show the same.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from workq.config import masked
from workq.config.place import shown
from workq.config.server_commands import rabbitmq_command, rabbitmq_growth
from workq.diagnose.doctor.check import Check, Level
from workq.values.plural import counted

if TYPE_CHECKING:
    from workq.broker.rabbitmq.nodes import Address
    from workq.broker.rabbitmq.topology import Topology

VARIABLE: Final = "WORKQ_BROKER_MANAGEMENT_URL"
ANSWER_S: Final = 2.0
ANSWER_MAX_BYTES: Final = 16 * 1024 * 1024
QUEUES_MAX: Final = 500
_COLUMNS: Final = "name,type,durable,state,arguments,members,online,leader"
_KINDS: Final = {
    "all": ("classic", "quorum"),
    "queues": ("classic", "quorum"),
    "classic_queues": ("classic",),
    "quorum_queues": ("quorum",),
}


class Unanswered(Exception):
    """The API was not reached, or refused."""


class UnknownQuestion(Unanswered):
    """The API of this version has no such path."""


@dataclass(frozen=True, slots=True)
class Api:
    """Where the API is, and as whom to log in."""

    base: str
    user: str
    password: str
    ca_file: str | None

    @staticmethod
    def of(address: Address) -> Api:
        """The one that the environment names, or the usual one of this broker.

        Raises:
            Unanswered: the environment names none of the right form; the text repeats nothing of it.
        """
        named = os.environ.get(VARIABLE, "").strip().rstrip("/")
        if not named:
            host, _ = address.hosts[0]
            base = f"https://{shown(host, 15671)}" if address.is_tls else f"http://{shown(host, 15672)}"
            return Api(base, address.user, address.password, address.ca_file)
        try:
            parts = urlsplit(named)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is none, a bracket that is not closed
            is_url = False
        if not is_url:
            raise Unanswered(f"{VARIABLE} is not of the form http://user:password@host:15672 (or https://)")
        base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        if parts.username is None:
            return Api(base, address.user, address.password, address.ca_file)
        return Api(base, unquote(parts.username), unquote(parts.password or ""), address.ca_file)

    def get(self, path: str) -> Any:
        """One answer.

        Raises:
            Unanswered: there was none; the text says why.
        """
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode("ascii")
        request = urllib.request.Request(  # noqa: S310 - `of` has checked the scheme
            f"{self.base}/api/{path}", headers={"Authorization": f"Basic {login}", "Accept": "application/json"}
        )
        handlers: list[Any] = [urllib.request.ProxyHandler({}), _NoRedirect()]
        try:
            if self.base.startswith("https:"):
                handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.ca_file)))
            with urllib.request.build_opener(*handlers).open(request, timeout=ANSWER_S) as answer:
                return json.loads(answer.read(ANSWER_MAX_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 503:  # how a health check says no
                    with suppress(OSError, ValueError):
                        return json.loads(error.read(ANSWER_MAX_BYTES))
            kind = UnknownQuestion if error.code in (400, 404) else Unanswered
            raise kind(_refused(error.code, self.user)) from None
        except urllib.error.URLError as error:
            reason = error.reason
            raise Unanswered(str(getattr(reason, "strerror", None) or reason)) from None
        except http.client.HTTPException:
            raise Unanswered("what listens there does not speak HTTP: is that the port, and http or https?") from None
        except (OSError, ValueError) as error:
            raise Unanswered(f"{type(error).__name__}: {error}") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the password to somebody else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _refused(code: int, user: str) -> str:
    if code in (401, 403):
        cure = f"rabbitmqctl set_user_tags {user} monitoring"
        return f"it refused user {user!r} ({code}), who needs the tag monitoring: {cure}"
    return f"it answered {code}"


def look(topology: Topology, address: Address, queues: Sequence[str]) -> Iterator[Check]:
    """What only the API tells. `queues` are those of the application; those that exist besides are looked at too."""
    place = "the management API"
    vhost = quote(address.vhost, safe="")
    ours = f"^{re.escape(topology.namespace)}[.](q[.]|quarantine$|delay[.]|level[.])"
    page = urlencode({"page": 1, "page_size": QUEUES_MAX, "name": ours, "use_regex": "true", "columns": _COLUMNS})
    try:
        api = Api.of(address)
        place += f" at {masked(api.base)}"
        found = api.get(f"queues/{vhost}?{page}")["items"]
        policies = api.get(f"policies/{vhost}")
        operator_policies = api.get(f"operator-policies/{vhost}")
        nodes = api.get("nodes?columns=name,running,partitions")
        alarms = api.get("health/checks/alarms").get("alarms") or []  # at once: those of the nodes come seconds later
        leaderless = _leaderless(api, vhost, ours)
    except (Unanswered, AttributeError, KeyError, TypeError) as error:
        yield Check(
            "broker",
            Level.UNCHECKED,
            f"policies, alarms and members of queues were not checked: {place} is out of reach "
            f"({error}). Enable the plugin rabbitmq_management or set {VARIABLE}; by hand: "
            f"{rabbitmq_command(address.vhost, 'rabbitmqctl', 'list_policies')}; "
            f"{rabbitmq_command(address.vhost, 'rabbitmqctl', 'list_queues', 'name', 'policy', 'state')}; "
            "rabbitmqctl status",
        )
        return
    if leaderless is None:
        yield Check(
            "broker",
            Level.UNCHECKED,
            "whether each quorum queue has a leader was not checked: the management API of RabbitMQ 4.0 does not tell; "
            f"by hand: {rabbitmq_command(address.vhost, 'rabbitmqctl', 'list_queues', 'name', 'state', 'leader')}",
        )
    findings = [*_nodes(nodes, alarms)]
    names = [str(node["name"]) for node in nodes]
    for queue in found:
        known = {"leader": None} if queue["name"] in (leaderless or ()) else {}
        findings += _of_queue(topology, {**queue, **known}, vhost=address.vhost, nodes=names)
        if queue["name"] == topology.quarantine:
            continue
        # the queue's own account of its policies comes seconds later, so it is not asked
        in_force = _in_force(queue["name"], queue.get("type", "classic"), policies, operator_policies)
        findings += _losses(f"on queue {queue['name']}", queue.get("arguments") or {}, *in_force)
    there = {queue["name"] for queue in found}
    for name in [topology.main_queue(one) for one in queues if topology.main_queue(one) not in there]:
        in_force = _in_force(name, topology.queue_type, policies, operator_policies)
        findings += _losses(f"which will apply to queue {name}", {}, *in_force)
    yield from findings
    if not findings:
        yield Check(
            "broker",
            Level.OK,
            f"no policy drops hints, no alarm; {counted(len(found), 'queue is', 'queues are')} well "
            f"(management API at {masked(api.base)})",
        )


def _leaderless(api: Api, vhost: str, ours: str) -> frozenset[str] | None:
    """Our quorum queues without a leader, where the list of queues hides it. None: nobody tells.

    RabbitMQ 4 lists a queue with the leader and the members that it had last, for as long as their nodes are up.
    """
    with suppress(UnknownQuestion):  # RabbitMQ 4.1 has the check
        path = f"health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{quote(ours, safe='')}"
        return frozenset(queue["name"] for queue in api.get(path).get("queues") or ())
    version = str(api.get("overview?columns=rabbitmq_version")["rabbitmq_version"])
    return None if version.startswith("4.") else frozenset()


def _nodes(nodes: Sequence[Mapping[str, Any]], alarms: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    for alarm in alarms:
        yield Check(
            "broker",
            Level.ERROR,
            f"{alarm.get('resource', 'some')} alarm on node {alarm.get('node', '?')}: RabbitMQ takes no hints until it "
            "ends; tasks stay in the ledger, and are relayed then. Free some, or raise the limit",
        )
    for node in nodes:
        if node.get("partitions"):
            yield Check(
                "broker",
                Level.ERROR,
                f"node {node['name']} does not see {', '.join(map(str, node['partitions']))}: the cluster is split",
            )
        if node.get("running") is False:
            yield Check("broker", Level.WARNING, f"node {node['name']} of the cluster is down")


def _of_queue(topology: Topology, queue: Mapping[str, Any], *, vhost: str, nodes: Sequence[str]) -> Iterator[Check]:
    """One queue that exists: what it is, whether it is well, and what policies do to it."""
    name, kind = str(queue["name"]), str(queue.get("type", ""))
    arguments = queue.get("arguments") or {}
    is_main = name.startswith(topology.main_queue(""))
    if queue.get("durable") is False:
        yield Check(
            "broker",
            Level.ERROR,
            f"queue {name} is not durable: a restart of RabbitMQ takes it, with its hints; delete it: workq declares "
            "it anew",
        )
    yield from _health(name, kind, queue, vhost=vhost, nodes=nodes, is_main=is_main)
    if is_main and kind == "quorum" and "x-delivery-limit" not in arguments:
        yield Check(
            "broker",
            Level.ERROR,
            f"quorum queue {name} has no x-delivery-limit: where none is in force (RabbitMQ 3, or a policy of -1), "
            "hints that are returned go behind the marker, and one that is well may be taken for lost; with the 20 of "
            "RabbitMQ 4, they are dropped unseen. Empty and delete the queue, workq declares it anew",
        )


def _health(
    name: str, kind: str, queue: Mapping[str, Any], *, vhost: str, nodes: Sequence[str], is_main: bool
) -> Iterator[Check]:
    state = str(queue.get("state", "running"))
    members, online = list(queue.get("members") or ()), list(queue.get("online") or ())
    has_majority = not members or len(online) > len(members) / 2
    if kind == "quorum" and (not has_majority or not queue.get("leader")):
        yield Check(
            "broker",
            Level.ERROR,
            f"quorum queue {name} has no leader ({len(online)} of {len(members)} members are up): nothing goes in or "
            "out; start its nodes, or delete the queue: workq declares it anew and the sweep sends its hints again",
        )
    elif state not in ("running", "idle", "flow"):
        yield Check("broker", Level.ERROR, f"queue {name} is {state}: see the log of RabbitMQ")
    elif len(online) < len(members):
        away = ", ".join(sorted(set(members) - set(online)))
        yield Check("broker", Level.WARNING, f"quorum queue {name} lacks its members on {away}: start those nodes")
    if is_main and len(nodes) > 1 and (kind == "classic" or len(members) == 1):
        others = (rabbitmq_growth(vhost, node, name) for node in nodes if node not in members)
        yield Check(
            "broker",
            Level.WARNING,
            f"{kind} queue {name} lives on one of {len(nodes)} nodes: while that node is down, its hints wait; "
            + ("use queue_type quorum" if kind == "classic" else f"give it others: {'; '.join(others)}"),
        )


def _losses(
    place: str, arguments: Mapping[str, Any], policy: Mapping[str, Any], by: Mapping[str, str]
) -> Iterator[Check]:
    """What the policies in force take from a queue; `by` names the one that sets each key.

    Of a number that both an argument of the queue and a policy set, RabbitMQ takes the lower one; a negative one is no
    limit (RabbitMQ 4), and the argument stands.
    """

    def finding(key: str, what: str) -> Check:
        return Check("broker", Level.WARNING, f"{by[key]} {place} sets {key} {policy[key]}: {what}")

    def lowers(key: str) -> bool:
        return isinstance(policy.get(key), int) and 0 <= policy[key] < arguments.get(f"x-{key}", math.inf)

    cure = "the ledger proves what is lost and sends it again, later; keep this policy away from workq's queues"
    if lowers("message-ttl"):
        yield finding("message-ttl", f"hints that wait for more milliseconds are dropped; {cure}")
    for key in ("max-length", "max-length-bytes"):
        if not lowers(key):
            continue
        if str(arguments.get("x-overflow", policy.get("overflow", "drop-head"))).startswith("reject"):
            yield finding(key, "when it is full, hints are refused, and the sweep sends them later")
        else:
            yield finding(key, f"when it is full, hints are dropped (overflow drop-head); {cure}")
    if "expires" in policy:
        yield finding("expires", f"RabbitMQ deletes the queue when nobody listens for so many milliseconds; {cure}")
    if "dead-letter-exchange" in policy and "x-dead-letter-exchange" not in arguments:
        yield finding("dead-letter-exchange", "what RabbitMQ gives up goes there, not to workq's quarantine")
    if lowers("delivery-limit") and "x-delivery-limit" in arguments:
        yield finding("delivery-limit", f"hints that come back so often are given up; {cure}")


_Policies = Sequence[Mapping[str, Any]]


def _in_force(
    name: str, kind: str, policies: _Policies, operator_policies: _Policies
) -> tuple[dict[str, Any], dict[str, str]]:
    """What applies to a queue, and which policy says it: of each sort, the fitting one with the highest priority."""
    definition: dict[str, Any] = {}
    by: dict[str, str] = {}
    for sort, some in (("policy", policies), ("operator policy", operator_policies)):
        fitting = [one for one in some if _applies(one, name, kind)]
        if not fitting:
            continue
        chosen = max(fitting, key=lambda one: int(one.get("priority", 0)))
        for key, value in (chosen.get("definition") or {}).items():
            if key not in definition or (isinstance(value, int) and value < definition[key]):
                definition[key], by[key] = value, f"{sort} {chosen.get('name', '?')!r}"
    return definition, by


def _applies(policy: Mapping[str, Any], name: str, kind: str) -> bool:
    try:
        is_meant = re.search(str(policy.get("pattern", "")), name) is not None
    except re.error:  # Erlang's patterns are almost Python's
        return False
    return is_meant and kind in _KINDS.get(str(policy.get("apply-to")), ())
