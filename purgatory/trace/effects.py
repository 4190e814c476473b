"""What a service did, told by a test, as rows of the table `effects`.

A broker sees what it sends to a consumer and which offsets come back, and not what a service did in
between. Whoever can say for which records a service had its effect (the rows of its database, the
calls of a stub) gives them to an audit:

    kafka_cluster.audit(expect=["once", "no-loss"], effects=[("orders", 0, 17), ...])

An effect is a tuple of topic, partition and offset, a message of a client, or an `Effect`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from purgatory.trace.trace_writer import arrow_schema


class Effect(NamedTuple):
    """The effect of one record, as somebody tells it.

    Attributes:
        topic, partition, offset: the record.
        group: whose effect it is; None: of the one group that read the topic.
        key: what it changed, such as the row of a table; None: nothing that others change, too.
        version: of what it changed, so that their order can be looked at: a greater one is newer.
    """

    topic: str
    partition: int
    offset: int
    group: str | None = None
    key: object = None
    version: int | None = None


GivenEffect: TypeAlias = Effect | tuple[Any, ...] | Mapping[str, Any] | Any
"""What counts as an effect: a tuple, a row by names, or a message of a client."""


def effects_of(given: Iterable[GivenEffect]) -> list[Effect]:
    """Return what was given as effects. O(effects).

    Raises:
        ValueError: which one is none.
    """
    return [_effect(number, one) for number, one in enumerate(given)]


def effect_rows(
    given: Iterable[GivenEffect], groups: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Return the rows of the table `effects`, without `run_id`. O(effects).

    Args:
        given: in the order in which the service did them.
        groups: the groups that read each topic.

    Raises:
        ValueError: an effect is none, or nobody can say whose it is.
    """
    rows = []
    for number, effect in enumerate(effects_of(given)):
        has_version = effect.key is not None and effect.version is not None
        rows.append(
            {
                "group": effect.group or _only_group(effect, groups.get(effect.topic, ())),
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


def groups_by_topic(reads: pa.Table, commits: pa.Table | None = None) -> dict[str, list[str]]:
    """Return the groups that read each topic: those with that name, or else the clients' ids."""
    rows = reads.select(["topic", "group", "consumer_group"]).group_by(
        ["topic", "group", "consumer_group"]
    )
    named: dict[str, dict[str, None]] = {}
    others: dict[str, dict[str, None]] = {}
    for row in rows.aggregate([]).to_pylist():
        known = others if row["consumer_group"] is None else named
        known.setdefault(row["topic"], {})[row["consumer_group"] or row["group"]] = None
    if commits is not None:
        distinct = commits.select(["topic", "group"]).group_by(["topic", "group"]).aggregate([])
        for row in distinct.to_pylist():
            named.setdefault(row["topic"], {})[row["group"]] = None
    return {topic: sorted(groups) for topic, groups in {**others, **named}.items()}


def effects_table(
    run_id: str, given: Iterable[GivenEffect], reads: pa.Table, commits: pa.Table | None = None
) -> pa.Table:
    """Return the table `effects` of one run, beside its other tables. O(effects + reads).

    Raises:
        ValueError: as `effect_rows` has it.
    """
    rows = effect_rows(given, groups_by_topic(reads, commits))
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


def _only_group(effect: Effect, groups: Sequence[str]) -> str:
    if len(groups) == 1:
        return groups[0]
    if not groups:
        raise ValueError(
            f"nobody read {effect.topic}: whose is the effect of {effect.partition}, offset "
            f"{effect.offset}? Give Effect(..., group=...)"
        )
    raise ValueError(
        f"{', '.join(groups)} read {effect.topic}: whose are the effects? Effect(..., group=...)"
    )


def _number(key: object) -> int:
    """Return a number for whatever was changed, the same for the same thing."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
