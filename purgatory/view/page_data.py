"""States and changes of a traced run as plain data, as the page takes them."""

from __future__ import annotations

from typing import Any

from purgatory.trace import change_rows as rows
from purgatory.view.parked_operations import keys_at
from purgatory.view.replayed_wheel import levels_of
from purgatory.view.timeline import CHANGED, CLOCK, LEFT, MOVED, PARKED, Timeline
from purgatory.view.world import OUTCOMES, World

_INTERNAL = "__"


class PageData:
    """Describes what is on a timeline.

    Args:
        timeline: the events.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._line = timeline
        # In the order of their first operations, so all states have the same ones.
        self._purgatories = dict.fromkeys(
            [*timeline.parked.purgatory.values, *timeline.settled.purgatory.values]
        )

    # States.

    def state(self, world: World, at_us: int, most: int, unknown: list[str]) -> dict[str, Any]:
        """Describe a state.

        Args:
            world: it.
            at_us: when it is.
            most: of how many operations it tells; of more, it tells of each n-th.
            unknown: what the trace does not tell.
        """
        apart = -(-len(world.parked) // most) or 1
        shown = list(world.parked.items())[::apart]
        return {
            "at_us": at_us,
            "brokers": [self._broker(world, broker) for broker in self._line.brokers],
            "operations": [self._operation(one, place) for one, place in shown],
            "pending": len(world.parked),
            "shown": len(shown),
            "topics": self._topics(world),
            "groups": [self._group(row) for row in world.groups.values()],
            "transactions": [self._transaction(row) for row in world.transactions.values()],
            "faults": [self._fault(*where) for where in world.faults.values()],
            "unknown": unknown,
        }

    def _broker(self, world: World, broker: int) -> dict[str, Any]:
        line = self._line
        pending = dict.fromkeys(self._purgatories, 0)
        for operation in world.parked:
            if line.parked.broker[operation] == broker:
                pending[line.parked.purgatory.at(operation)] += 1
        state = world.brokers.get(broker, "alive")
        return {
            "id": broker,
            "alive": state != "dead",
            "paused": state == "paused",
            "address": None,
            "connections": None,
            "wheel": None if broker not in world.clocks else self._wheel(world.clocks[broker]),
            "purgatories": [
                {
                    "name": name,
                    "pending": count,
                    "outcomes": {
                        outcome: world.outcomes.get((broker, name, outcome), 0)
                        for outcome in OUTCOMES
                    },
                }
                for name, count in pending.items()
            ],
        }

    def _wheel(self, ref: int) -> dict[str, Any]:
        line = self._line
        clock_ms, levels = line.clock_ms[ref], line.clock_levels[ref]
        return {
            "tick_ms": line.tick_ms,
            "size": line.wheel_size,
            "clock_ms": clock_ms,
            "start_ms": 0,  # clocks tell the time of the run, also after a broker came back
            "levels": levels_of(line.tick_ms, line.wheel_size, clock_ms, levels),
        }

    def _operation(self, operation: int, place: tuple[int, int]) -> list[Any]:
        parked = self._line.parked
        level, bucket = place
        due_ms = parked.due_ms[operation]
        return [
            parked.ids[operation],
            parked.broker[operation],
            parked.purgatory.at(operation),
            parked.kind.at(operation),
            keys_at(parked.keys, operation),
            parked.time_us[operation],
            None if due_ms < 0 else due_ms,
            level or None,
            bucket if level else None,
        ]

    def _topics(self, world: World) -> list[dict[str, Any]]:
        topics: dict[str, list[dict[str, Any]]] = {}
        ends: dict[tuple[str, int], dict[str, int]] = {}
        for (name, number, broker), offset in sorted(world.log_ends.items()):
            ends.setdefault((name, number), {})[str(broker)] = offset
        for (name, number), row in sorted(world.partitions.items()):
            told = self._partition(row)
            told["high_watermark"] = world.watermarks.get((name, number))
            told["log_end_offsets"] = ends.get((name, number), {})
            del told["topic"], told["internal"]
            topics.setdefault(name, []).append(told)
        return [
            {"name": name, "internal": name.startswith(_INTERNAL), "partitions": partitions}
            for name, partitions in topics.items()
        ]

    def _partition(self, row: int) -> dict[str, Any]:
        table = self._line.changes
        assert table is not None, "it has rows"
        leader, name, partition, epoch, _ = self._line.changed(row)
        return {
            "topic": name,
            "internal": name.startswith(_INTERNAL),
            "partition": partition,
            "leader": leader,
            "leader_epoch": epoch,
            "replicas": _numbers(keys_at(table.names, row)),
            "isr": _numbers(keys_at(table.in_sync, row)),
        }

    def _group(self, row: int) -> dict[str, Any]:
        table = self._line.changes
        assert table is not None, "it has rows"
        broker, name, _, generation, state = self._line.changed(row)
        return {
            "name": name,
            "broker": broker,
            "state": state,
            "generation": generation,
            "members": keys_at(table.names, row),
        }

    def _transaction(self, row: int) -> dict[str, Any]:
        table = self._line.changes
        assert table is not None, "it has rows"
        broker, name, _, epoch, state = self._line.changed(row)
        return {
            "id": name,
            "broker": broker,
            "epoch": epoch,
            "state": state,
            "since_us": table.time_us[row],
        }

    def _fault(self, began: int, ended: int) -> dict[str, Any]:
        table = self._line.changes
        assert table is not None, "it has rows"
        _, text, _, number, kind = self._line.changed(began)
        until_us = table.due_ms[began] * 1_000 if table.due_ms[began] >= 0 else None
        return {
            "number": number,
            "kind": kind,
            "text": text,
            "brokers": _numbers(keys_at(table.names, began)),
            "active": ended < 0,
            "since_us": table.time_us[began],
            "until_us": until_us if ended < 0 else table.time_us[ended],
        }

    # Changes.

    def change(self, event: int) -> dict[str, Any] | None:
        """Describe an event; None: the page has no use for it. O(1)."""
        line = self._line
        kind, ref, at_us = line.kind[event], line.ref[event], line.at[event]
        if kind == CHANGED:
            told = self.changed(ref)
            return None if told is None else {"at_us": at_us, **told}
        if kind == PARKED:
            place = line.level[ref], line.bucket[ref]
            told = {"what": "parked", "operation": self._operation(ref, place)}
        elif kind == MOVED:
            level = line.moved_level[ref]
            told = {
                "what": "moved",
                "id": line.parked.ids[line.moved[ref]],
                "level": level or None,
                "bucket": line.moved_bucket[ref] if level else None,
            }
        elif kind == CLOCK:
            told = {"what": "clock", "broker": line.clock_broker[ref], **self._wheel(ref)}
        elif kind == LEFT:
            told = self._left(ref, "cancelled", at_us)
        else:
            told = self._settled(ref)
        return {"at_us": at_us, **told}

    def _left(self, operation: int, outcome: str, at_us: int) -> dict[str, Any]:
        parked = self._line.parked
        return {
            "what": "settled",
            "id": parked.ids[operation],
            "broker": parked.broker[operation],
            "purgatory": parked.purgatory.at(operation),
            "kind": parked.kind.at(operation),
            "outcome": outcome,
            "wait_us": at_us - parked.time_us[operation],
            "keys": keys_at(parked.keys, operation),
        }

    def _settled(self, ref: int) -> dict[str, Any]:
        settled = self._line.settled
        return {
            "what": "settled",
            "id": settled.ids[ref],
            "broker": settled.broker[ref],
            "purgatory": settled.purgatory.at(ref),
            "kind": settled.kind.at(ref),
            "outcome": settled.outcome.at(ref),
            "wait_us": settled.wait_us[ref],
            "keys": keys_at(settled.keys, ref),
        }

    def changed(self, row: int) -> dict[str, Any] | None:
        """Describe a row of `changes`; None: the page has no use for it. O(1)."""
        line = self._line
        table = line.changes
        assert table is not None, "it has rows"
        what = table.change.at(row)
        broker, name, partition, number, state = line.changed(row)
        offset = None if number < 0 else number
        place = {"what": what, "topic": name, "partition": partition, "offset": offset}
        match what:
            case rows.LOG_END:
                return {**place, "broker": broker}
            case rows.HIGH_WATERMARK:
                return place
            case rows.PARTITION:
                gone = {"gone": True} if state == rows.GONE else {}
                return {"what": what, **self._partition(row), **gone}
            case rows.SETTLED:
                operation = line.of_operation[row]
                return None if operation < 0 else self._left(operation, state, table.time_us[row])
            case rows.BROKER:
                told = {"what": what, "broker": broker}
                return {**told, "alive": state != "dead", "paused": state == "paused"}
            case rows.GROUP:
                return {"what": what, **self._group(row)}
            case rows.TRANSACTION:
                return {"what": what, **self._transaction(row)}
            case rows.FAULT:
                return {"what": what, **self._fault_at(row)}
        return None

    def _fault_at(self, row: int) -> dict[str, Any]:
        """A fault as it is after a row that tells that it began or ended."""
        table = self._line.changes
        assert table is not None, "it has rows"
        if table.state.at(row) != rows.ENDED:
            return self._fault(row, -1)
        for began in range(row - 1, -1, -1):
            is_same = table.number[began] == table.number[row]
            if is_same and table.change.at(began) == rows.FAULT:
                return self._fault(began, row)
        return self._fault(row, row)


def _numbers(texts: list[str]) -> list[int]:
    return [int(text) for text in texts if text.lstrip("-").isdigit()]
