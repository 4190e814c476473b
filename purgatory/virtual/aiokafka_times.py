"""aiokafka's records in a world have the world's time, also where its C code makes them.

That code asks the system for the time of day itself, where no reference to ``time.time`` is
exchanged. It does so only for records that come without a time: here they come with one.

Ground rules: only the thread that entered a world touches it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final

_MODULE: Final = "aiokafka.producer.message_accumulator"


class TimedRecords:
    """Gives aiokafka's records the world's time, between `begin` and `end`."""

    def __init__(self) -> None:
        self._builder: Any = None
        self._append: Callable[..., Any] | None = None

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

    def end(self) -> None:
        """Let it do what it did."""
        if self._append is not None:
            self._builder.append, self._append = self._append, None
