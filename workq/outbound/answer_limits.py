"""Answer limits: how much of a receiver's answer is read, in bytes and in processor time, before its body is cut.

All webhooks of a process share one event loop. HTTP itself ends neither the answers before the answer (1xx), nor the
extensions of a chunk, nor what follows the last one: a receiver that goes on sending them would take the processor from
its neighbours until its deadline. Every byte counts here, in the clear, before it is parsed.

An answer that exceeds a limit ends the connection and is a failure, `protocol`, also behind a 200: what the receiver
has done is unknown. What follows an answer that has no body, such as a 204, ends the connection, and the answer stands:
its status line has said what the receiver has done. An answer that comes in very many pieces is no failure; it is read
less often.
"""

from __future__ import annotations

import re
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import set_exception

ANSWER_MAX_BYTES: Final = 16 * 1024
"""Bytes of a body that are kept."""
RAW_MAX_BYTES: Final = 128 * 1024
"""Bytes of an answer with all that is around its body: enough for a body that comes in chunks of one byte."""
INFORMATIONAL_MAX: Final = 8
"""Answers with a status of 1xx that may precede the answer."""
PIECE_BYTES: Final = 2 * 1024
"""Bytes that are parsed before the limits are looked at again; most answers have fewer."""
READS_FREE: Final = 64
READ_EVERY_S: Final = 0.02
"""After the first reads of an answer, the seconds from one read to the next."""
BEGIN_BYTES: Final = 32
"""Bytes of a head in which its status is looked for."""
_HEAD_ENDS: Final = re.compile(rb"\n\r?\n")
_NO_BODY: Final = re.compile(rb"\s*HTTP/\d\.\d (?:1\d\d|204|304)\b")


class TooMuch(aiohttp.ClientError):
    """An answer exceeds a limit. The message says which."""


class LimitedAnswers(ResponseHandler):
    """One connection. Counts what arrives on it for the request that was sent last."""

    _bytes = _reads = _informational = _answers = 0
    _is_resting = False
    _begin = _end = b""
    """The first and the last bytes of a head that is not complete yet."""
    _too_much: TooMuch | None = None

    def set_response_params(self, **more: Any) -> None:
        """A request is about to be sent: the limits hold for its answer."""
        self._bytes = self._reads = self._informational = self._answers = 0
        self._begin = self._end = b""
        super().set_response_params(**more)

    def data_received(self, data: bytes) -> None:
        """Parse what was read, in pieces, as long as the limits permit. aiohttp itself calls it with nothing, often."""
        if not data:
            super().data_received(data)
            return
        self._reads += 1
        if self._reads > READS_FREE:
            self._read_later()
        at = 0
        while at < len(data):
            if self._has_ended():
                self._abort()
                return
            piece = data[at : at + PIECE_BYTES]
            if self._answers == 0:
                piece = self._of_head(piece)
            at += len(piece)
            self._bytes += len(piece)
            super().data_received(piece)
            if self._is_long() or self._is_ended_by_a_limit():
                return

    def feed_data(self, data: Any, size: int = 0) -> None:
        """A head was parsed."""
        if 100 <= data[0].code < 200 and data[0].code != 101:
            self._informational += 1
        else:
            self._answers += 1
        super().feed_data(data, size)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        """That the connection is lost follows from what was too much, and says nothing beside it."""
        super().set_exception(self._too_much or exc, *cause)

    def _of_head(self, piece: bytes) -> bytes:
        """The piece; only up to the end of a head with no body, where the parser would refuse it for what follows."""
        if len(self._begin) < BEGIN_BYTES:
            self._begin = (self._begin + piece)[:BEGIN_BYTES]
        known = len(self._end)
        seen = self._end + piece if known else piece
        found = _HEAD_ENDS.search(seen)
        if found is None:
            self._end = seen[-2:]
            return piece
        if _NO_BODY.match(self._begin) is None:
            return piece
        self._begin = self._end = b""
        return piece[: found.end() - known]

    def _has_ended(self) -> bool:
        """Whether the answer is complete: what else arrives was not asked for, and the connection is of no more use."""
        return self._answers > 0 and (self._payload is None or self._payload.is_eof())

    def _is_long(self) -> bool:
        """Whether the body is longer than what is kept of it: its reader is about to close the connection."""
        return self._answers > 0 and self._payload is not None and self._payload.total_bytes > ANSWER_MAX_BYTES

    def _is_ended_by_a_limit(self) -> bool:
        if self._informational > INFORMATIONAL_MAX:
            self._fail(f"more than {INFORMATIONAL_MAX} answers with a status of 1xx precede its answer")
        elif self._bytes > RAW_MAX_BYTES:
            self._fail(f"its answer has more than {RAW_MAX_BYTES // 1024} KiB around its body")
        elif self._answers > 1:
            self._abort()
        else:
            return False
        return True

    def _fail(self, text: str) -> None:
        self._too_much = error = TooMuch(text)
        self.set_exception(error)
        if self._payload is not None:
            set_exception(self._payload, error)
        self._parser = self._payload = None
        self._buffer.clear()
        self._abort()

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _read_later(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self._is_resting = True
            self.transport.pause_reading()
            self._loop.call_later(READ_EVERY_S, self._read_again)

    def _read_again(self) -> None:
        self._is_resting = False
        if self.transport is not None and not self.transport.is_closing():
            self.resume_reading()
            self.transport.resume_reading()

    def resume_reading(self, *more: Any, **named: Any) -> None:
        """aiohttp does this for each part of a body that was taken: not before it is time to read again."""
        if not self._is_resting:
            super().resume_reading(*more, **named)
