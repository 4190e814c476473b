"""Logs and metadata on disk."""

from purgatory.cluster.storage.disk import REAL_DISK, Disk, DiskUsage, FolderLock
from purgatory.cluster.storage.memory_log import MemoryBudget, MemoryLog
from purgatory.cluster.storage.metadata_file import load_metadata, save_metadata
from purgatory.cluster.storage.recovery import LogCheckpoint, LogRequest, load_logs, replica_folders
from purgatory.cluster.storage.segment_file import Fsync
from purgatory.cluster.storage.stored_log import StoredLog

__all__ = [
    "REAL_DISK",
    "Disk",
    "DiskUsage",
    "FolderLock",
    "Fsync",
    "LogCheckpoint",
    "LogRequest",
    "MemoryBudget",
    "MemoryLog",
    "StoredLog",
    "load_logs",
    "load_metadata",
    "replica_folders",
    "save_metadata",
]
