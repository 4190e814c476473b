"""Keeps a second process off a cluster's folder."""

from __future__ import annotations

import os
from pathlib import Path

from purgatory.cluster.storage.disk import Disk
from purgatory.cluster.storage.disk_files import make_folder
from purgatory.cluster.storage.real_disk import REAL_DISK
from purgatory.kafka.errors import ClusterError

_FILE = ".lock"


class FolderLock:
    """Holds ``folder`` for this process, until it is closed or the process ends, however that is.

    Raises:
        ClusterError: another process has it, or it can't be written to.
    """

    def __init__(self, folder: Path, disk: Disk = REAL_DISK) -> None:
        self._disk = disk
        try:
            make_folder(disk, folder, forces=True)
            self._descriptor = disk.open(folder / _FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ClusterError(f"{folder} can't be written to: {error.strerror}") from error
        try:
            disk.lock(self._descriptor)
        except OSError:
            self.close()
            raise ClusterError(
                f"{folder} is in use by another cluster: end it, or take another folder"
            ) from None

    def close(self) -> None:
        """Let others have it. Closing twice has no effect."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._disk.close(descriptor)
