"""How the capture's clients of the cluster are set up."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError

from purgatory.changes.capture.errors import CaptureError

_PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    # A record that fails for good must have nothing behind it in its partition.
    "enable.gapless.guarantee": True,
    # None is given up while later ones go on: the capture, which waits for them, gives up on all.
    "message.timeout.ms": 0,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 262_144,
    "batch.size": 1_000_000,
    "batch.num.messages": 1_000_000,
}
_LINGER_MS = 5
_LONGEST_LINGER_MS = 900_000
"""Where the sender says when a batch goes: the longest that librdkafka takes."""

_SENDER_S_OWN = frozenset(
    ["linger.ms", "queue.buffering.max.ms", "message.timeout.ms", "delivery.timeout.ms"]
)
"""A record that goes early, or is given up, would have others of its partition come before it."""

_ONLY_PRODUCER = (
    frozenset(_PRODUCER)
    | _SENDER_S_OWN
    | {
        "message.max.bytes",
        "compression.type",
        "max.in.flight.requests.per.connection",
        "request.timeout.ms",
        "retries",
        "retry.backoff.ms",
    }
)
_QUIET_S = 10.0
_SILENT = logging.getLogger("purgatory.changes.capture.librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


class Troubles:
    """Hears what a client says of the cluster: tells it now and then, and keeps what is final."""

    def __init__(self) -> None:
        self.fatal: str | None = None
        """Why the client can't go on; None as long as it can."""
        self._told_s = float("-inf")

    def __call__(self, error: KafkaError) -> None:
        """Take an error."""
        if error.fatal():
            self.fatal = self.fatal or str(error.str())
            return
        now_s = time.monotonic()
        if now_s - self._told_s >= _QUIET_S:
            self._told_s = now_s
            print(f"purgatory capture: the cluster: {error.str()}; trying on", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The cluster, and librdkafka's settings on top of the capture's own.

    Args:
        extra: by librdkafka's names, as in ``security.protocol``.

    Raises:
        CaptureError: one of them can't be what it is.
    """

    bootstrap_servers: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = sorted(_SENDER_S_OWN & self.extra.keys())
        if own and self.idempotent:
            raise CaptureError(
                f"--client {own[0]}: leave it out: an idempotent capture says itself when a batch "
                "goes, and gives none up"
            )

    @property
    def idempotent(self) -> bool:
        """Whether the producer is to be: it is, unless ``extra`` says otherwise."""
        return str(self.extra.get("enable.idempotence")).lower() not in ("false", "f", "0")

    def producer(self, troubles: Troubles, largest_bytes: int) -> dict[str, Any]:
        """Return the settings of a producer.

        Args:
            troubles: hears what goes wrong.
            largest_bytes: a larger record is refused before anything is sent.
        """
        settings = {
            **_PRODUCER,
            "linger.ms": _LONGEST_LINGER_MS if self.idempotent else _LINGER_MS,
            "message.max.bytes": largest_bytes,
            **self.extra,
            **self._common(),
            "error_cb": troubles,
        }
        if not self.idempotent:
            settings["enable.gapless.guarantee"] = False
        return settings

    def reader(self) -> dict[str, Any]:
        """Return the settings of a consumer that belongs to no group of its own."""
        return {
            **self._admin_extra(),
            **self._common(),
            "group.id": "purgatory-capture",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "auto.offset.reset": "earliest",
            # The records are there: a fetch that waits for more holds up the next question.
            "fetch.wait.max.ms": 10,
        }

    def admin(self) -> dict[str, Any]:
        """Return the settings of an administrator."""
        return {**self._admin_extra(), **self._common()}

    def _admin_extra(self) -> dict[str, Any]:
        return {name: value for name, value in self.extra.items() if name not in _ONLY_PRODUCER}

    def _common(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": "purgatory-capture",
            "error_cb": Troubles(),
            # The client's own log tells the same twice, in its own words.
            "logger": _SILENT,
        }
