"""How the capture's clients of the cluster are set up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    # A record that fails for good must have nothing behind it in its partition.
    "enable.gapless.guarantee": True,
    "linger.ms": 5,
    "message.timeout.ms": 300_000,
    # How large a record may be is the topic's affair.
    "message.max.bytes": 100_000_000,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 262_144,
}
_ONLY_PRODUCER = frozenset(_PRODUCER) | {
    "batch.size",
    "batch.num.messages",
    "compression.type",
    "max.in.flight.requests.per.connection",
    "request.timeout.ms",
    "retries",
    "retry.backoff.ms",
}
_QUIET_S = 10.0


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The cluster, and librdkafka's settings on top of the capture's own.

    Args:
        extra: by librdkafka's names, as in ``security.protocol``.
    """

    bootstrap_servers: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def producer(self) -> dict[str, Any]:
        """Return the settings of a producer."""
        settings = {**_PRODUCER, **self.extra, **self._common()}
        if str(settings["enable.idempotence"]).lower() == "false":
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
            "error_cb": _told(),
            # The client's own log tells the same twice, in its own words.
            "log_level": 0,
        }


def _told() -> Callable[[object], None]:
    last_s = float("-inf")

    def tell(error: object) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s >= _QUIET_S:
            last_s = now_s
            print(f"purgatory capture: the cluster: {error}; trying on", file=sys.stderr)

    return tell
