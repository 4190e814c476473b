"""A world in virtual time for asyncio programs and the Kafka cluster they use: see `World`."""

from __future__ import annotations

from purgatory.virtual.consistency import Operation, OperationHistory, Register, Transaction
from purgatory.virtual.errors import (
    DeadlockError,
    LivelockError,
    PropertyError,
    SandboxError,
    WorldError,
    WorldTimeoutError,
)
from purgatory.virtual.history import Event
from purgatory.virtual.hosts import Host
from purgatory.virtual.network import Partition, VirtualNetwork
from purgatory.virtual.world import World

__all__ = [
    "DeadlockError",
    "Event",
    "Host",
    "LivelockError",
    "Operation",
    "OperationHistory",
    "Partition",
    "PropertyError",
    "Register",
    "SandboxError",
    "Transaction",
    "VirtualNetwork",
    "World",
    "WorldError",
    "WorldTimeoutError",
]
