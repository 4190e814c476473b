"""What of aiokafka would not be the world's: the time of its records, and the names of producers.

Its C code asks the system for the time of day itself, where no reference to ``time.time`` is
exchanged. It does so only for records that come without a time: here they come with one. And it
counts the producers of a process, for the names that they send: here it counts those of a world.

Ground rules: only the thread that entered a world touches it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final

_MODULE: Final = "aiokafka.producer.message_accumulator"
_PRODUCERS: Final = "aiokafka.producer.producer"
_COUNTED: Final = "_PRODUCER_CLIENT_ID_SEQUENCE"


class TimedRecords:
    """Gives aiokafka's records the world's time, between `begin` and `end`."""

    def __init__(self) -> None:
        self._builder: Any = None
        self._append: Callable[..., Any] | None = None
        self._producer: Any = None
        self._counted = 0

    def begin(self) -> None:
        """Begin, once aiokafka is imported. Again: no effect."""
        module = sys.modules.get(_MODULE)
        if module is None or self._append is not None:
            return
        builder: Any = getattr(module, "BatchBuilder")  # noqa: B009 - it has no types
        append = builder.append

        def append_with_time(of: Any, *, timestamp: int | None, **record: Any) -> Any:
            if timestamp is None:
                timestamp = time.time_ns() // 1_000_000
            return append(of, timestamp=timestamp, **record)

        self._builder, self._append = builder, append
        builder.append = append_with_time
        producer = getattr(sys.modules.get(_PRODUCERS), "AIOKafkaProducer", None)
        if hasattr(producer, _COUNTED):
            self._producer, self._counted = producer, getattr(producer, _COUNTED)
            setattr(producer, _COUNTED, 0)

    def end(self) -> None:
        """Let it do what it did."""
        if self._append is not None:
            self._builder.append, self._append = self._append, None
        if self._producer is not None:
            setattr(self._producer, _COUNTED, self._counted)
            self._producer = None
