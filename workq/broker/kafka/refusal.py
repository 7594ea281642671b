"""LastRefusal: why no broker of Kafka lets us in, as librdkafka tells beside the calls that wait for an answer.

A call itself says no more than that nobody answered in time. What TLS could not verify, a login that was refused, a
name that nobody knows and a port where nothing listens come by `error_cb`, to the thread that polls. What was told is
forgotten when an answer comes.

librdkafka says nothing of a port with TLS that is spoken to in the clear, nor of one without TLS where TLS is spoken:
such a port only closes the connection. Nothing is sent in the clear where the URL says TLS.
"""

from __future__ import annotations

import math
import re
from typing import Final

from confluent_kafka import KafkaError

from workq.config.place import UrlPlace
from workq.errors import NAME_PATIENCE_S, BrokerUnavailable

_AFTER: Final = re.compile(r" \(after [^()]*\)$")
_AT: Final = re.compile(r"([^/ ]+)/")
"""What an error begins with: the place of a broker, and its number or `bootstrap`."""
_REFUSED: Final = "Connection refused"
_TOLD_MAX: Final = 3
_TLS: Final = "SSL routines::"
_VERIFY_FAILED: Final = "certificate verify failed"
_ENDED: Final = "unexpected eof"
"""A broker that goes away amid a handshake: nothing is wrong with us."""


class LastRefusal:
    """Of the clients of one process. Any thread may use it."""

    def __init__(self, place: UrlPlace, *, ca_file: str | None) -> None:
        self._place = place
        self._authority = ca_file or "those of this machine"
        self._why: str | None = None
        self._unreached: dict[str, tuple[str, float]] = {}
        """By broker: why there is no connection, and for how long that may mend itself."""
        self.is_final = False
        """No broker is left that has not refused us: to wait for an answer is of no use."""

    def heed(self, error: KafkaError) -> None:
        """As `error_cb` of a client: it is told of each connection that fails, whatever the reason."""
        is_tls = _TLS in error.str() and _ENDED not in error.str()
        if error.code() == KafkaError._AUTHENTICATION or is_tls:
            self._why = self._text(error)
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.is_final = self._why is not None
        elif at := _AT.match(error.str()):
            host = at[1]
            if error.code() == KafkaError._RESOLVE:
                self._unreached[host] = f"the host of {host} is unknown. Check the name, or the DNS", NAME_PATIENCE_S
            elif _REFUSED in error.str():
                self._unreached[host] = f"nothing listens at {host} (connection refused)", math.inf
            else:
                self._unreached.pop(host, None)

    def forget(self) -> None:
        """Kafka has answered."""
        self._why, self.is_final = None, False
        self._unreached = {}

    def failure(self) -> BrokerUnavailable:
        """What to raise where no answer came. Waiting does not mend a refusal."""
        if self._why is None and (unreached := list(self._unreached.values())):
            told = "; ".join(sorted(why for why, _ in unreached)[:_TOLD_MAX])
            failed = BrokerUnavailable(self._place.clean(f"broker: {self._place} did not answer: {told}"))
            failed.patience_s = max(patience_s for _, patience_s in unreached)
            return failed
        if self._why is None:
            hint = "does that port speak TLS?" if self._place.is_tls else "is that port one without TLS?"
            return BrokerUnavailable(f"broker: {self._place} did not answer; is Kafka there, and {hint}")
        refused = BrokerUnavailable(f"broker: {self._why}")
        refused.patience_s = 0.0
        return refused

    def _text(self, error: KafkaError) -> str:
        said = _AFTER.sub("", error.str().partition(": ")[2] or error.str())
        if error.code() == KafkaError._AUTHENTICATION:
            text = f"{self._place} refused the login: {said}. Check user, password and ?mechanism= in the URL"
        elif _VERIFY_FAILED in said:
            text = (
                f"{self._place} could not be verified by TLS: its certificate is of another authority than "
                f"{self._authority}, for another name, or its time is over. Name the CA as ?ca_file=/path/ca.pem, and "
                "the host as its certificate does"
            )
        else:
            text = (
                f"{self._place} and we have no TLS in common: {said.rpartition(_TLS)[2]}. Check cert_file and key_file"
            )
        return self._place.clean(text)
