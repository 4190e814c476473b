"""Skips what a log has twice: a connector that was killed delivers its last changes again.

A change lies behind all others of its log, in its partition, or was there before. A log that begins
anew, as on another server, has earlier places, but later times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from purgatory.cdc.apply.operations import Item
from purgatory.cdc.change import INSERT, Change, Origin
from purgatory.cdc.targets.target import Target

_Log = tuple[str, int, str]
Places = Mapping[_Log, tuple[tuple[int, ...], int]]
"""The last place of each log, by topic, partition and server; and the newest time, in ms."""


class Repeats:
    """Finds records that a target has already, by its table `purgatory_places`."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def skip(self, items: Iterable[Item]) -> tuple[list[Item], Places]:
        """Replace repeated records by some without a value; return how far the logs lead, too.

        Args:
            items: of each partition by rising offsets, behind all that is stored.
        """
        places: dict[_Log, tuple[tuple[int, ...], int]] = {}
        kept = []
        for item in items:
            change = item.change
            if change is None or change.origin is None or not change.origin.place:
                kept.append(item)
                continue
            origin = change.origin
            log = (*item.record.topic_partition, origin.server)
            last, newest_ms = places.get(log) or self._stored(log)
            if _is_repeated(change, origin, last, newest_ms):
                kept.append(Item(item.record._replace(value=None), None))
            else:
                places[log] = origin.place, max(newest_ms, origin.time_ms)
                kept.append(item)
        return kept, places

    def store(self, places: Places) -> None:
        """Within a transaction: store how far the logs lead."""
        for (topic, partition, server), (place, newest_ms) in places.items():
            self._target.delete_own(
                "purgatory_places", topic=topic, partition=partition, server=server
            )
            row = (topic, partition, server, json.dumps(place), newest_ms)
            self._target.insert_own("purgatory_places", [row])

    def _stored(self, log: _Log) -> tuple[tuple[int, ...], int]:
        topic, partition, server = log
        rows = self._target.select_own(
            "purgatory_places", topic=topic, partition=partition, server=server
        )
        return (tuple(json.loads(rows[0][3])), int(rows[0][4])) if rows else ((), -1)


def _is_repeated(change: Change, origin: Origin, last: tuple[int, ...], newest_ms: int) -> bool:
    if origin.snapshot or origin.place > last or origin.time_ms > newest_ms:
        return False
    # Without numbers, rows that one COPY wrote have one place; writing one again changes nothing.
    return not (origin.place == last and change.kind == INSERT and change.xoffset is None)
