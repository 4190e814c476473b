"""The remote tier that the brokers of a cluster share: what is there of each partition.

Ground rules
------------
* Everything happens on the event loop's thread, but what the folder does: that is awaited.
* One task at a time copies to or deletes of one partition (``lock_of``).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from purgatory.cluster.fault_injection import Faults
from purgatory.cluster.remote_config import RemoteConfig
from purgatory.cluster.storage import REAL_DISK, Disk
from purgatory.cluster.storage.folder_lock import FolderLock
from purgatory.cluster.storage.remote_folder import RemoteFolder, RemotePlace
from purgatory.kafka.controller import Controller
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import RemoteOperation
from purgatory.kafka.tiers.remote_log import RemoteLog
from purgatory.kafka.tiers.tier_settings import is_tiered
from purgatory.kafka.topic_partition import TopicPartition

T = TypeVar("T")

_NOTHING = RemoteLog()


class RemoteStorage:
    """What is in the tier.

    Args:
        config: of the tier.
        controller: knows the topics.
        faults: what goes wrong there.
        disk: on which its folder is.
    """

    def __init__(
        self,
        config: RemoteConfig,
        controller: Controller,
        faults: Faults,
        disk: Disk = REAL_DISK,
    ) -> None:
        self.config = config
        self._controller = controller
        self._faults = faults
        self._disk = disk
        self.folder = None if config.dir is None else RemoteFolder(config.dir, disk)
        self._logs: dict[RemotePlace, RemoteLog] = {}
        self._locks: defaultdict[RemotePlace, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._lock: FolderLock | None = None
        self._deletions: set[asyncio.Future[None]] = set()

    async def load(self) -> None:
        """Find out what is there: before any broker starts.

        Raises:
            ClusterError: it can't be read, or topics are to be there and it isn't.
        """
        if self.folder is None:
            for topic in self._controller.topics.values():
                if is_tiered(topic.configs, lambda _: None):
                    raise ClusterError(
                        f"topic {topic.name} is in a remote tier, and none is given: remote.dir"
                    )
            return
        self._lock = FolderLock(self.folder.folder, self._disk)
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, self.folder.load)
        except OSError as error:
            raise ClusterError(f"{self.folder.folder} can't be read: {error.strerror}") from error
        self._logs = {place: RemoteLog(segments) for place, segments in found.items()}

    async def close(self) -> None:
        """Let others have the folder, once what is being deleted is."""
        await asyncio.gather(*self._deletions, return_exceptions=True)
        if self._lock is not None:
            self._lock.close()

    def place_of(self, topic_partition: TopicPartition) -> RemotePlace | None:
        """Return where a partition is in the tier; None of a topic that there isn't."""
        topic = self._controller.topics.get(topic_partition.topic)
        return None if topic is None else RemotePlace(*topic_partition, topic.topic_id)

    def log_at(self, place: RemotePlace | None) -> RemoteLog:
        """Return what is there of a partition, to be read only."""
        return _NOTHING if place is None else self._logs.get(place, _NOTHING)

    def log_to_change(self, place: RemotePlace) -> RemoteLog:
        """Return the same, to be changed by who has its lock."""
        return self._logs.setdefault(place, RemoteLog())

    def lock_of(self, place: RemotePlace) -> asyncio.Lock:
        """Return what is held by who copies to or deletes of a partition."""
        return self._locks[place]

    async def do(
        self,
        broker_id: int,
        operation: RemoteOperation,
        function: Callable[..., T],
        *arguments: Any,
    ) -> T:
        """Have the folder do something for a broker: it takes its time, and may fail.

        Raises:
            OSError: it failed, or a fault has it fail; and what ``function`` raises.
        """
        latency_ms = self.config.latency_ms + self._faults.remote_delay_ms(broker_id, operation)
        if latency_ms:
            await asyncio.sleep(latency_ms / 1_000)
        await self._faults.pass_pause(broker_id)
        if self._faults.fails_remote(broker_id, operation):
            raise OSError(f"a fault has each {operation} fail")
        work = partial(function, *arguments)
        return await asyncio.get_running_loop().run_in_executor(None, work)

    async def pass_pause(self, broker_id: int) -> None:
        """Return when a broker is not paused."""
        await self._faults.pass_pause(broker_id)

    def forget_deleted(self) -> None:
        """Forget topics that were deleted, and take them out of the folder."""
        for place in list(self._logs):
            if self._controller.topic_with_id(place.topic_id) is None:
                del self._logs[place]
                if self.folder is not None:
                    deletion = asyncio.ensure_future(self._delete(self.folder, place))
                    self._deletions.add(deletion)
                    deletion.add_done_callback(self._deletions.discard)

    async def _delete(self, folder: RemoteFolder, place: RemotePlace) -> None:
        async with self.lock_of(place):
            await asyncio.get_running_loop().run_in_executor(None, folder.delete_partition, place)
        self._locks.pop(place, None)
