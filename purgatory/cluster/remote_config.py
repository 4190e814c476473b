"""What a cluster's remote tier is to be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RemoteConfig:
    """Where segments are kept besides, of topics that say so (``remote.storage.enable``).

    Args:
        dir: a folder, of this cluster alone; None: there is no remote tier.
        latency_ms: how long whatever is done there takes, beside what the disk takes.
        copy_interval_ms: how often brokers look what is to be copied there, and deleted.
        fetch_max_wait_ms: how long a fetch waits for what is read there, at most.
        list_offsets_timeout_ms: how long a lookup by time waits, where its request doesn't say.
    """

    dir: Path | None = None
    latency_ms: float = 0
    copy_interval_ms: int = 1_000
    fetch_max_wait_ms: int = 500
    list_offsets_timeout_ms: int = 30_000
