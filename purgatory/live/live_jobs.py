"""What the jobs of ``purgatory stream`` are to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class LiveJobs:
    """What the jobs are to do.

    Args:
        out: the folder of the results.
        checkpoint: the folder where the queries keep how far they are.
        window_us: how long a window of waits is.
        late_us: how much later than others a row may come.
        remember_us: for how long after that a record is remembered.
        to_topic: two topics' names by query, or none.
        bootstrap_servers, client: where these are.
        once: take what is there now, and end.
    """

    out: Path
    checkpoint: Path
    window_us: int = 10_000_000
    late_us: int = 30_000_000
    remember_us: int = 120_000_000
    to_topic: str | None = None
    bootstrap_servers: str = ""
    client: Mapping[str, str] = field(default_factory=dict)
    once: bool = False
