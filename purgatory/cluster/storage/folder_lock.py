"""Keeps a second process off a cluster's folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from purgatory.kafka.errors import ClusterError

_FILE = ".lock"


class FolderLock:
    """Holds ``folder`` for this process, until it is closed or the process ends, however that is.

    Raises:
        ClusterError: another process has it, or it can't be written to.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ClusterError(f"{folder} can't be written to: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise ClusterError(
                f"{folder} is in use by another cluster: end it, or take another folder"
            ) from None

    def close(self) -> None:
        """Let others have it. Closing twice has no effect."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
