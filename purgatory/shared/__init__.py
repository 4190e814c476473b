"""Waits that span processes: one purgatory in each worker, and a relay that tells the others.

    async with SharedPurgatory("Fetch", PostgresRelay(dsn), read=current_values) as fetches:
        value = await fetches.wait_for_threshold("log:7", 43, timeout=20)
        await fetches.advance("log:7", 43)    # in any worker, after the commit

Purgatories of one name, on relays of one database or folder, hear each other.

The truth stays in a store that all workers read. A relay may lose, double and reorder messages: a
value only rises, and is read again every `resync`, so a wait is late at most, never wrong.

`shared_purgatory` has the purgatory, for event loops and for threads; `relay` what relays have in
common, and `arguments` what they refuse; `unix_relay`, `postgres_relay` and `redis_relay` one relay
each.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purgatory.shared.postgres_relay import PostgresRelay
    from purgatory.shared.redis_relay import RedisRelay
    from purgatory.shared.relay import Relay, RelayError, RelayState
    from purgatory.shared.shared_purgatory import SharedPurgatory, ThreadedSharedPurgatory
    from purgatory.shared.unix_relay import UnixRelay

__all__ = [
    "PostgresRelay",
    "RedisRelay",
    "Relay",
    "RelayError",
    "RelayState",
    "SharedPurgatory",
    "ThreadedSharedPurgatory",
    "UnixRelay",
]

_MODULES = {
    "PostgresRelay": "postgres_relay",
    "RedisRelay": "redis_relay",
    "Relay": "relay",
    "RelayError": "relay",
    "RelayState": "relay",
    "SharedPurgatory": "shared_purgatory",
    "ThreadedSharedPurgatory": "shared_purgatory",
    "UnixRelay": "unix_relay",
}


if not TYPE_CHECKING:  # or it would let any name pass

    def __getattr__(name: str) -> Any:
        """Import a relay only where it is used: each needs a client of its own."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
