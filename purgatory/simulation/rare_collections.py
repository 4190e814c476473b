"""Python's garbage collector, held back while a scenario runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for cyclic garbage less often: a run makes objects by the million, hardly any cyclic."""
    before = gc.get_threshold()
    gc.collect()
    try:
        gc.freeze()
        gc.set_threshold(500_000, 20, 100)
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
