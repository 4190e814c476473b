"""The effects of a service, given by a test, as rows of the table `effects`.

A broker sees the records that it sends to a consumer and the offsets that come back, but not the
effects of the service in between. A test that knows for which records a service had its effect (by
the rows of its database, or the calls of a stub) gives them to an audit:

    kafka_cluster.audit(expect=["once", "no-loss"], effects=[("orders", 0, 17), ...])

An effect is a tuple of topic, partition and offset, a message of a client, or an `Effect`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa


class Effect(NamedTuple):
    """The effect of one record.

    Attributes:
        topic, partition, offset: the record.
        group: the group that had it; None: the one group that read the topic.
        key: the thing changed, such as the row of a table; None: nothing that others change, too.
        version: that of the thing changed, for the order of changes: a greater one is newer.
    """

    topic: str
    partition: int
    offset: int
    group: str | None = None
    key: object = None
    version: int | None = None


GivenEffect: TypeAlias = Effect | tuple[Any, ...] | Mapping[str, Any] | Any
"""An effect: an `Effect`, a tuple, a row by names, or a message of a client."""


def effects_of(given: Iterable[GivenEffect]) -> list[Effect]:
    """Return the given effects as `Effect`. O(effects).

    Raises:
        ValueError: one of them is no effect; the text names it.
    """
    return [_effect(number, one) for number, one in enumerate(given)]


def read_effects(path: Path) -> list[Effect]:
    """Return the effects in a file of JSON lines, which a program in any language writes.

    Each line is an object with `topic`, `partition` and `offset`, and, as `Effect` has them,
    `group`, `key` and `version`. O(lines).

    Raises:
        ValueError: the file can't be read, or a line is no effect; the text names it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: can't be read: {error}") from error
    effects = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                given = json.loads(line)
                if not isinstance(given, dict):
                    raise ValueError("is no object")
                effects += effects_of([given])
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from None
    return effects


class TakesEffects:
    """The effects of a service, as its test tells them to a recorded cluster or proxy."""

    def applied(self, *effects: GivenEffect) -> None:
        """Tell the audit for which records the service had its effect, in its order.

        Call it where the service works, or in its stub; from any thread. O(1) for each.

        Args:
            effects: the client's messages, tuples of topic, partition and offset, or `Effect`s.

        Raises:
            ValueError: one of them is no effect.
        """
        self.__dict__.setdefault("_applied", []).extend(effects_of(effects))

    def _forget_effects(self) -> None:
        self.__dict__.pop("_applied", None)

    def _with_effects(
        self, run_id: str, tables: Mapping[str, pa.Table], effects: Iterable[GivenEffect] | None
    ) -> dict[str, pa.Table]:
        """Return the tables of a run with these effects after those that were told."""
        applied = self.__dict__.get("_applied")
        if effects is None and applied is None:
            return dict(tables)
        given = [*(applied or ()), *(effects or ())]
        table = effects_table(run_id, given, tables["reads"], tables["commits"])
        return {**tables, "effects": table}


class Groups(NamedTuple):
    """The groups of one topic in a trace, in their order.

    Attributes:
        reading: those with reads: by their names, or else by client ids.
        named: those that reads or commits name; all that read, if there is none.
    """

    reading: Sequence[str]
    named: Sequence[str]


_NO_GROUPS = Groups((), ())


def effect_rows(given: Iterable[GivenEffect], groups: Mapping[str, Groups]) -> list[dict[str, Any]]:
    """Return the rows of the table `effects`, without `run_id`. O(effects).

    Args:
        given: in the order in which the service did them.
        groups: those of each topic.

    Raises:
        ValueError: one of them is no effect, or its group is ambiguous.
    """
    rows = []
    for number, effect in enumerate(effects_of(given)):
        has_version = effect.key is not None and effect.version is not None
        rows.append(
            {
                "group": _group_of(effect, groups.get(effect.topic, _NO_GROUPS)),
                "consumer": 0,
                "topic": effect.topic,
                "partition": effect.partition,
                "offset": effect.offset,
                "key": _number(effect.key) if has_version else number,
                "version": effect.version if has_version else 0,
                "time_us": number,
                "transaction": None,
            }
        )
    return rows


def groups_by_topic(reads: pa.Table, commits: pa.Table) -> dict[str, Groups]:
    """Return the groups of each topic. O(reads + commits).

    Args:
        reads: with `topic`, `group` and `consumer_group`.
        commits: with `topic` and `group`.
    """
    named: dict[str, set[str]] = {}
    reading: dict[str, set[str]] = {}
    for row in _distinct(reads, "topic", "group", "consumer_group"):
        name = row["consumer_group"]
        reading.setdefault(row["topic"], set()).add(name or row["group"])
        if name is not None:
            named.setdefault(row["topic"], set()).add(name)
    for row in _distinct(commits, "topic", "group"):
        named.setdefault(row["topic"], set()).add(row["group"])
    none: set[str] = set()
    return {
        topic: Groups(
            sorted(reading.get(topic, none)), sorted(named.get(topic) or reading.get(topic, none))
        )
        for topic in reading.keys() | named.keys()
    }


def _distinct(table: pa.Table, *columns: str) -> list[dict[str, Any]]:
    names = list(columns)
    rows: list[dict[str, Any]] = table.select(names).group_by(names).aggregate([]).to_pylist()
    return rows


def effects_table(
    run_id: str, given: Iterable[GivenEffect], reads: pa.Table, commits: pa.Table
) -> pa.Table:
    """Return the table `effects` of one run, beside its other tables. O(effects + reads).

    Raises:
        ValueError: as `effect_rows` has it.
    """
    rows = effect_rows(given, groups_by_topic(reads, commits))
    # Reading Arrow takes longer than starting a cluster that records nothing.
    import pyarrow as pa

    from purgatory.trace.trace_writer import arrow_schema

    return pa.Table.from_pylist(
        [{"run_id": run_id, **row} for row in rows], schema=arrow_schema("effects")
    )


def _effect(number: int, given: GivenEffect) -> Effect:
    if isinstance(given, Effect):
        effect = given
    elif isinstance(given, Mapping):
        unknown = sorted(given.keys() - set(Effect._fields))
        missing = sorted({"topic", "partition", "offset"} - given.keys())
        if unknown or missing:
            raise ValueError(
                f"effects[{number}] has no {missing[0]}"
                if missing
                else f"effects[{number}]: an effect has no {unknown[0]!r}"
            )
        effect = Effect(**given)
    elif all(hasattr(given, name) for name in ("topic", "partition", "offset")):
        # A message: aiokafka has attributes, confluent-kafka has methods.
        parts = (getattr(given, name) for name in ("topic", "partition", "offset"))
        effect = Effect(*(part() if callable(part) else part for part in parts))
    elif isinstance(given, tuple) and 3 <= len(given) <= len(Effect._fields):
        effect = Effect(*given)
    else:
        raise ValueError(
            f"effects[{number}] is {given!r:.60}: give topic, partition and offset, or a message"
        )
    if type(effect.topic) is not str or not all(
        type(one) is int and one >= 0 for one in (effect.partition, effect.offset)
    ):
        raise ValueError(
            f"effects[{number}] is {given!r:.60}: a topic is text, partition and offset are numbers"
        )
    return effect


def _group_of(effect: Effect, groups: Groups) -> str:
    group = effect.group
    if group is None:
        if len(groups.named) > 1:
            raise ValueError(
                f"{', '.join(groups.named)} read {effect.topic}: whose are the effects? "
                "Effect(..., group=...)"
            )
        if not groups.named:
            raise ValueError(
                f"nobody read {effect.topic}, and an effect is of partition {effect.partition}, "
                f"offset {effect.offset}"
            )
        [group] = groups.named
    if group not in groups.reading:
        raise ValueError(
            f"the trace has no reads of {effect.topic} by {group}; those of groups whose clients "
            "have one client id can't be told apart: give them client ids of their own"
        )
    return group


def _number(key: object) -> int:
    """Return a number for the thing changed, the same for the same thing."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
