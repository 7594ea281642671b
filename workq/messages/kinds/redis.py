"""redis: to a stream or a list, both with a bound.

Messages of a call go in one pipeline; each is confirmed by the reply of Redis, and with `replicas` only when so many
replicas have it (`WAIT`). How safe that is depends on Redis: with `appendfsync everysec` it may lose the last second.

- A stream keeps about `maxlen` entries, the newest (`MAXLEN ~`): what nobody has read by then is gone. An entry has the
  fields `workq-id`, `content-type`, `body`, and `header:NAME` for each header.
- A list that has `maxlen` elements takes no more (`ASKED`): what is in it was read by nobody. Each element is JSON:
  `workq-id`, `content_type`, `headers`, and `body`, or `body_base64` for what is no UTF-8. With several senders it may
  become a little longer.

Nothing makes a second copy harmless here: it has the same `workq-id`, and the reader has to look.
"""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from workq.config.addresses import Allowed
from workq.config.given_options import GivenOptions, check_files
from workq.config.place import UrlPlace, place_of
from workq.errors import ConfigError, MissingExtra
from workq.messages.kinds import (
    Answer,
    Confirmed,
    DestinationAddress,
    DestinationLink,
    Kind,
    Posting,
    SendFault,
    Unsent,
)
from workq.messages.kinds.reach import Lookup, ReachFailed, connect, left, trouble_of, trust_of

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ModuleNotFoundError as error:
    raise MissingExtra("a destination of the kind redis needs a client library: install the extra [redis]") from error

FORM: Final = "redis://user:password@host:6379/0 or rediss://..."
KEY_MAX: Final = 1024
MAXLEN: Final = 1_000_000
REPLICAS_MAX: Final = 10
DATABASE_MAX: Final = 16_383


class RedisKind(Kind):
    """`--stream S` or `--list L`."""

    name = "redis"

    def __init__(self, *, lookup: Lookup = socket.getaddrinfo) -> None:
        """`lookup`: for tests."""
        self._lookup = lookup

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """See the port. `url`, `stream` or `list`, `maxlen` (a million), `replicas` (0), `ca_file` and the like."""
        given = GivenOptions(options)
        place = _place(given.take("url", why=f"it is {FORM}"))
        given.stored["url"] = str(place)
        if place.path and not (place.path.isascii() and place.path.isdigit() and int(place.path) <= DATABASE_MAX):
            raise ConfigError(f"url: the number of a database follows the port; need {FORM}")
        names = [given.text(one, why="the key", default=None, most=KEY_MAX) for one in ("stream", "list")]
        if names.count(None) != 1:
            raise ConfigError("stream, list: need one of them, and not both: the key that messages are put into")
        given.number("maxlen", default=MAXLEN, least=1, most=1_000_000_000)
        given.number("replicas", default=0, least=0, most=REPLICAS_MAX)
        check_files(given, is_tls=place.is_tls)
        return given.done(kind=self.name)

    def open(self, address: DestinationAddress, *, allowed: Allowed) -> DestinationLink:
        """See the port."""
        return _RedisLink(address, allowed=allowed, lookup=self._lookup)


def _place(url: object) -> UrlPlace:
    return place_of(url, {"redis": 6379, "rediss": 6379}, form=FORM, tls="rediss")


class _RedisLink(DestinationLink):
    def __init__(self, address: DestinationAddress, *, allowed: Allowed, lookup: Lookup) -> None:
        self._options = address.options
        self._place = _place(address.url)
        self._allowed = allowed
        self._lookup = lookup
        self._ends = 0.0
        """Of the call that runs: what it waits for is over then."""
        self._connection: Any = None  # redis-py has no types for what is done with one

    def send(self, postings: Sequence[Posting], *, timeout_s: float) -> list[Answer]:
        """See the port."""
        self._ends = time.monotonic() + timeout_s
        answers: list[Answer | None] = [None] * len(postings)
        is_sent = False
        try:
            connection = self._connected()
            taken = self._room(connection, len(postings))
            commands = [self._command(posting) for posting in postings[:taken]]
            if self._options["replicas"] and commands:
                commands.append(("WAIT", self._options["replicas"], max(1, int(left(self._ends) * 500))))
            is_sent = bool(commands)
            self._say(connection, commands)
            for index in range(taken):
                answers[index] = self._answer(connection)
            if self._options["replicas"] and commands:
                self._judge_copies(answers, taken, self._answer(connection, is_wait=True))
            full = Unsent(
                SendFault.ASKED, f"the list has {self._options['maxlen']} elements, and takes no more (maxlen)"
            )
            return [full if one is None else one for one in answers]
        except ReachFailed as failed:
            return [one or failed.unsent for one in answers]
        except (redis.RedisError, OSError) as error:
            self.close()
            unsent = self._trouble(error)
            if is_sent and unsent.fault is SendFault.AWAY:
                unsent = Unsent(SendFault.LATE, f"before its reply: {unsent.text}")
            return [one or unsent for one in answers]

    def test(self, *, timeout_s: float) -> list[str]:
        """See the port. Whether the user may write is seen when it does."""
        self._ends = time.monotonic() + timeout_s
        stream, key = self._options.get("stream"), self._options.get("stream") or self._options.get("list")
        try:
            connection = self._connected()
            self._say(connection, [("TYPE", key), ("INFO", "replication")])
            found = self._reply(connection)
            replication = self._reply(connection)
        except ReachFailed as failed:
            return [failed.unsent.text]
        except (redis.RedisError, OSError) as error:
            self.close()
            return [self._trouble(error).text]
        problems = []
        wanted = "stream" if stream else "list"
        kind = found.decode() if isinstance(found, bytes) else str(found)
        if not isinstance(found, Exception) and kind not in ("none", wanted):
            problems.append(f"the key {key!r} is there, and is a {kind}")
        if isinstance(replication, bytes) and b"role:slave" in replication:
            problems.append("this Redis is a replica, and takes no writes")
        return problems

    def close(self) -> None:
        """See the port."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _room(self, connection: Any, wanted: int) -> int:
        """How many of these are taken."""
        if self._options.get("list") is None:
            return wanted
        self._say(connection, [("LLEN", self._options.get("list"))])
        length = self._reply(connection)
        if isinstance(length, redis.RedisError):
            raise ReachFailed(self._trouble(length))
        most: int = self._options["maxlen"]
        return max(0, min(wanted, most - int(length)))

    def _command(self, posting: Posting) -> tuple[Any, ...]:
        if self._options.get("stream") is None:
            return ("RPUSH", self._options.get("list"), _element(posting))
        fields: dict[str, str | bytes] = {"workq-id": posting.id, "content-type": posting.content_type}
        fields |= {f"header:{name}": value for name, value in posting.headers.items()}
        pairs = [part for pair in {**fields, "body": posting.body}.items() for part in pair]
        return ("XADD", self._options.get("stream"), "MAXLEN", "~", self._options["maxlen"], "*", *pairs)

    def _say(self, connection: Any, commands: Sequence[tuple[Any, ...]]) -> None:
        connection.send_packed_command(connection.pack_commands(commands))

    def _reply(self, connection: Any) -> Any:
        """A reply; an error of Redis is one, too."""
        try:
            return connection.read_response(disable_decoding=True, timeout=left(self._ends))
        except redis.ResponseError as error:
            return error

    def _answer(self, connection: Any, *, is_wait: bool = False) -> Any:
        found = self._reply(connection)
        if isinstance(found, redis.RedisError):
            return self._trouble(found)
        if is_wait:
            return found
        key = self._options.get("stream")
        return Confirmed(None if key is None else f"{key}@{found.decode()}")

    def _judge_copies(self, answers: list[Answer | None], taken: int, copies: Any) -> None:
        wanted = self._options["replicas"]
        if isinstance(copies, int) and copies >= wanted:
            return
        said = copies.text if isinstance(copies, Unsent) else f"{copies} of {wanted} replicas have it"
        for index in range(taken):
            if isinstance(answers[index], Confirmed):
                answers[index] = Unsent(SendFault.LATE, f"Redis has it, and no confirm of its replicas came: {said}")

    def _connected(self) -> Any:
        """The connection, after its login. Raises ReachFailed, redis.RedisError, OSError."""
        connection = self._connection
        if connection is not None:
            connection.socket_timeout = left(self._ends)
            if not _is_usable(connection):
                self.close()
                connection = None
        if connection is None:
            [(host, port)] = self._place.hosts
            trust = trust_of(self._options) if self._place.is_tls else None

            def make() -> socket.socket:
                return connect(host, port, self._allowed, lookup=self._lookup, ends=self._ends, trust=trust)

            connection = _Connection(
                make,
                host=host,
                port=port,
                db=int(self._place.path or 0),
                username=self._place.user,
                password=self._place.password,
                socket_timeout=left(self._ends),
                retry=Retry(NoBackoff(), 0),
                client_name="workq-messages",
                protocol=2,
            )
            self._connection = connection
            self._connection.connect()
        return connection

    def _trouble(self, error: BaseException) -> Unsent:
        """What an error of the client, or of Redis, means."""
        [(host, port)] = self._place.hosts
        text = self._place.clean(f"Redis says: {error}")
        word = str(error).partition(" ")[0]
        match error:
            case redis.AuthenticationError() | redis.exceptions.NoPermissionError():
                return Unsent(SendFault.REFUSED, self._place.clean(f"Redis refused the login or the right: {error}"))
            case redis.BusyLoadingError() | redis.exceptions.ReadOnlyError():
                return Unsent(SendFault.AWAY, text)
            case redis.ConnectionError() | redis.TimeoutError() | OSError():
                unsent = trouble_of(error, host, port)
                return Unsent(unsent.fault, self._place.clean(unsent.text))
            case redis.exceptions.OutOfMemoryError():
                return Unsent(SendFault.ASKED, text)
        if word in ("NOAUTH", "WRONGPASS", "NOPERM"):
            return Unsent(SendFault.REFUSED, text)
        if word == "OOM":
            return Unsent(SendFault.ASKED, text)
        if word in ("WRONGTYPE", "MOVED") or "DB index is out of range" in str(error):
            return Unsent(SendFault.NO_TARGET, text)
        if "string exceeds maximum" in str(error) or "invalid bulk length" in str(error):
            return Unsent(SendFault.MESSAGE, text)
        return Unsent(SendFault.AWAY, text)


class _Connection(redis.Connection):
    """On a socket that was made to an address that may be reached, with TLS where it should have that."""

    def __init__(self, make: Any, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._make = make

    def _connect(self) -> socket.socket:
        made: socket.socket = self._make()
        made.settimeout(self.socket_timeout)
        return made


def _is_usable(connection: Any) -> bool:
    """Whether it is open, and nothing has come that nobody waits for: an end is such a thing."""
    try:
        return connection.is_connected and not connection.can_read(timeout=0)
    except (redis.RedisError, OSError):
        return False


def _element(posting: Posting) -> bytes:
    told: dict[str, Any] = {
        "workq-id": posting.id,
        "content_type": posting.content_type,
        "headers": dict(posting.headers),
    }
    try:
        told["body"] = posting.body.decode()
    except UnicodeDecodeError:
        told["body_base64"] = base64.b64encode(posting.body).decode()
    return msgspec.json.encode(told)
