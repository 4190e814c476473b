"""A world in virtual time for asyncio programs and the Kafka cluster they use: see `World`."""

from __future__ import annotations

from purgatory.virtual.errors import DeadlockError, SandboxError, WorldError, WorldTimeoutError
from purgatory.virtual.history import Event
from purgatory.virtual.network import Partition, VirtualNetwork
from purgatory.virtual.world import World

__all__ = [
    "DeadlockError",
    "Event",
    "Partition",
    "SandboxError",
    "VirtualNetwork",
    "World",
    "WorldError",
    "WorldTimeoutError",
]
