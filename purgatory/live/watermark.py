"""The watermark in Spark's account of a batch: the time up to which rows are expected no more."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def watermark_us(progress: Mapping[str, Any]) -> int | None:
    """The watermark in microseconds since 1970, or None if there is none.

    Args:
        progress: Spark's own account of a batch.
    """
    watermark = (progress.get("eventTime") or {}).get("watermark")
    if watermark is None:
        return None
    time = datetime.fromisoformat(watermark.replace("Z", "+00:00"))
    return (time - _EPOCH) // timedelta(microseconds=1)
