"""Logs and metadata on disk."""

from purgatory.broker.storage.folder_lock import FolderLock
from purgatory.broker.storage.memory_log import MemoryBudget, MemoryLog
from purgatory.broker.storage.metadata_file import load_metadata, save_metadata
from purgatory.broker.storage.recovery import Noted, load_logs, replica_folders
from purgatory.broker.storage.segment_file import Fsync
from purgatory.broker.storage.stored_log import StoredLog

__all__ = [
    "FolderLock",
    "Fsync",
    "MemoryBudget",
    "MemoryLog",
    "Noted",
    "StoredLog",
    "load_logs",
    "load_metadata",
    "replica_folders",
    "save_metadata",
]
