"""What to make of an error of librdkafka: give up at once, or wait for it to pass."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException

from purgatory.client.errors import BrokerAwayError, BrokerError

_POLL_S = 0.1
_FIRST_CALL_S = 0.5
_LONGEST_CALL_S = 16.0

# Those that waiting does not mend.
_HOPELESS = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError._FATAL,
        KafkaError._INVALID_ARG,
    }
)
# Those that a connection that once worked comes out of, and one that never did does not.
_HOPELESS_AT_FIRST = frozenset({KafkaError._SSL, KafkaError._RESOLVE})
_HINTS = {
    KafkaError._AUTHENTICATION: "check sasl.username and sasl.password",
    KafkaError.SASL_AUTHENTICATION_FAILED: "check sasl.username and sasl.password",
    KafkaError._SSL: "check security.protocol and ssl.ca.location",
    KafkaError._RESOLVE: "check bootstrap.servers",
}


class Patience:
    """Waits for brokers while nothing comes from them, and no longer than that.

    Args:
        what: whom it waits for, for errors.
        timeout_ms: how long.
    """

    def __init__(self, what: str, timeout_ms: int) -> None:
        self._what = what
        self._timeout_s = timeout_ms / 1000
        self._deadline_s = time.monotonic() + self._timeout_s
        self._connected = False
        self._call_s = _FIRST_CALL_S / 2
        self._last: KafkaError | None = None

    def answered(self) -> None:
        """A broker answered, though not yet with what is waited for."""
        self._connected = True

    def progress(self) -> None:
        """What is waited for came: begin to wait anew."""
        self._connected = True
        self._deadline_s = time.monotonic() + self._timeout_s

    def call_s(self) -> float:
        """Return how long the next call may take, in seconds: more from call to call.

        What went wrong with a connection is not told before a call returns; and a broker that is
        slow must not be asked too briefly for ever.
        """
        self._call_s = min(2 * self._call_s, _LONGEST_CALL_S)
        return min(self._call_s, max(_POLL_S, self._deadline_s - time.monotonic()))

    def note(self, error: KafkaError) -> None:
        """Take an error of librdkafka; this is its `error_cb` too."""
        # That all brokers are down says less than why, which came before it.
        if self._last is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last = error

    def check(self) -> None:
        """Raise BrokerError if it is no use to wait, or no more."""
        last = self._last
        if last is not None and self._is_hopeless(last):
            raise BrokerError(f"{self._what}: {last.str()}{_hint(last)}")
        if time.monotonic() > self._deadline_s:
            reason = "nothing came" if last is None else f"{last.str()}{_hint(last)}"
            raise BrokerAwayError(
                f"{self._what}: gave up after {self._timeout_s:g} s "
                f"(kafkaConsumer.pollTimeoutMs): {reason}"
            )

    def wait(self, consumer: Consumer) -> None:
        """Let a moment pass, serve the consumer's events, and check."""
        time.sleep(_POLL_S)
        consumer.poll(0)
        self.check()

    def _is_hopeless(self, error: KafkaError) -> bool:
        return error.code() in _HOPELESS or (
            not self._connected and error.code() in _HOPELESS_AT_FIRST
        )


def error_of(exception: KafkaException) -> KafkaError:
    """Return what an exception of librdkafka holds."""
    error: KafkaError = exception.args[0]
    return error


def _hint(error: KafkaError) -> str:
    hint = _HINTS.get(error.code())
    return f": {hint}" if hint else ""
