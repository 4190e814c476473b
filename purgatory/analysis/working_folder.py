"""A folder for what a job makes on its way, which is gone when the job ends.

Ground rules: Ctrl-C and SIGTERM wait while it is made, and while it is removed: else one that comes
between the making and its noting would leave it there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from purgatory.analysis.termination import signals_held


@contextmanager
def working_folder(prefix: str, place: Path | None = None) -> Iterator[Path]:
    """A new folder, which is removed with all that is in it at the end of the `with` block.

    Args:
        prefix: how its name begins.
        place: the folder in which it is made; None: where the system has temporary ones.

    Raises:
        OSError: it can't be made.
    """
    folder = None
    try:
        with signals_held():
            folder = TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True)
        yield Path(folder.name)
    finally:
        if folder is not None:
            with signals_held():
                folder.cleanup()
