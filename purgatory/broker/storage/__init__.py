"""Logs and metadata on disk."""

from purgatory.broker.storage.folder_lock import FolderLock
from purgatory.broker.storage.metadata_file import load_metadata, save_metadata
from purgatory.broker.storage.recovery import load_logs
from purgatory.broker.storage.segment_file import Fsync
from purgatory.broker.storage.stored_log import StoredLog

__all__ = ["FolderLock", "Fsync", "StoredLog", "load_logs", "load_metadata", "save_metadata"]
