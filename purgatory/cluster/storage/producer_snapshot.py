"""What is known of producers where a log begins: in a file beside the segments that are left.

Which batches a producer has sent is read back from the log itself; of those that retention deleted
it is here.

Ground rules
------------
* The file of an offset is written before any segment below that offset goes, and the former one
  goes after them: so one is there for the first segment that is, whenever the process ends, or the
  power: it is forced onto the disk.
* One that can't be read is none: the producers are known from the log's start on then.
"""

from __future__ import annotations

import json
from pathlib import Path

from crc32c import crc32c

from purgatory.cluster.storage.disk import Disk
from purgatory.cluster.storage.disk_files import paths_in, read_file, remove_file, replace_file
from purgatory.cluster.storage.real_disk import REAL_DISK
from purgatory.core.recent_errors import Logger
from purgatory.kafka.log.producer_state import ProducerStates

_SUFFIX = ".producers"

_log = Logger("purgatory.cluster")


def save_snapshot(
    folder: Path, offset: int, producers: ProducerStates, disk: Disk = REAL_DISK
) -> None:
    """Write what is known of producers at an offset; nothing, where nothing is. O(producers).

    Args:
        folder: of the log.
        offset: where a segment begins.
        producers: as of there.
        disk: on which the folder is.

    Raises:
        OSError: the disk refuses it.
    """
    path = _path(folder, offset)
    if not len(producers):
        remove_file(disk, path)
        return
    text = json.dumps(producers.as_data()).encode()
    replace_file(disk, path, b"%08x %b" % (crc32c(text), text), forces=True)


def load_snapshot(folder: Path, offset: int, disk: Disk = REAL_DISK) -> ProducerStates | None:
    """Return what was known of producers at an offset; None: nothing is written of it."""
    path = _path(folder, offset)
    try:
        checksum, _, text = read_file(disk, path).partition(b" ")
    except OSError:
        return None
    try:
        if checksum != b"%08x" % crc32c(text):
            raise ValueError("the checksum is another one")
        return ProducerStates.of_data(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        _log.warning("producers_unreadable", file=str(path), reason=str(error))
        return None


def remove_snapshots(folder: Path, but_of: int | None = None, disk: Disk = REAL_DISK) -> None:
    """Remove what is written, but that of one offset."""
    keep = None if but_of is None else _path(folder, but_of)
    for path in paths_in(disk, folder, _SUFFIX, f"{_SUFFIX}.new"):
        if path != keep:
            remove_file(disk, path)


def _path(folder: Path, offset: int) -> Path:
    return folder / f"{offset:020}{_SUFFIX}"
