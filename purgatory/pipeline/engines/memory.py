"""The memory that an engine takes: shares of that of the machine, or of the container."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_MEMORY_SHARE = 0.6
"""The share of the machine's memory that a job may take."""

MEMORY_PER_ROW = 150
"""The bytes of a row that must be in memory: DuckDB can't spill all of its data."""

_LEAST_MEMORY = 1 << 30

_MIB = 1 << 20
_LEAST_HEAP_BYTES = 512 * _MIB
_SMALL_HEAP_BYTES = 1024 * _MIB
_MOST_HEAP_BYTES = 4096 * _MIB

PAGE_SIZE = "2m"
"""The memory that a sort or a broadcast table takes at once, and fills with zeros.

By default it grows with the heap, to 64 MB: 30 broadcast tables of few rows then hold 2 GB. A task
has 8,192 pages at most.
"""


def total_memory_bytes() -> int:
    """The memory of this machine, or the limit of this container if that is lower."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no container, or one without a bound
        whole = min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text("ascii")))
    return whole


def duckdb_memory_bytes(rows: int | None = None) -> int:
    """The memory of DuckDB before it spills to disk: a share of all, and less for few rows."""
    most = int(total_memory_bytes() * _MEMORY_SHARE)
    return most if rows is None else min(most, max(_LEAST_MEMORY, MEMORY_PER_ROW * rows))


def heap_bytes(memory_bytes: int) -> int:
    """The default heap of Java on a machine, or in a container, with this memory.

    A quarter of the memory: beside it, Java takes some 800 MiB for classes, compiled code and
    buffers, and others run there, too. More than 4 GiB help no job, since tasks sort and spill.
    """
    heap = max(memory_bytes // 4, min(_SMALL_HEAP_BYTES, memory_bytes // 2), _LEAST_HEAP_BYTES)
    return min(heap, _MOST_HEAP_BYTES)
