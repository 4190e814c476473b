"""The schema of a trace: its tables, their columns and types, and the rules of a row.

Schema version 3, described in `docs/traces.md`, with what each version added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

SCHEMA_VERSION = 3
"""The version that is written."""

SCHEMA_VERSIONS = (1, 2, SCHEMA_VERSION)
"""The versions that are read."""


def version_error(version: object) -> str | None:
    """Return why a trace of this schema version can't be read; None if it can."""
    if type(version) is int and version in SCHEMA_VERSIONS:
        return None
    known = ", ".join(map(str, SCHEMA_VERSIONS[:-1]))
    return (
        f"schema_version is {version!r}, and this version of purgatory reads {known} and "
        f"{SCHEMA_VERSIONS[-1]}"
    )


RUN_FILE = "run.json"

REQUIRED_TABLES = ("operations", "sends", "reads")
"""The tables of each trace in Parquet; in JSON lines, a table without rows may be missing."""

TABLES: Mapping[str, Mapping[str, str]] = {
    "operations": {
        "run_id": "string",
        "broker": "int",
        "purgatory": "string",
        "operation": "bigint",
        "keys": "int",
        "timeout_ms": "bigint",
        "start_us": "bigint",
        "end_us": "bigint",
        "wait_us": "bigint",
        "outcome": "string",
        "kind": "string",
        "watch_keys": "array<string>",
    },
    "sends": {
        "run_id": "string",
        "group": "string",
        "producer": "bigint",
        "sequence": "bigint",
        "attempt": "int",
        "key": "bigint",
        "value_id": "bigint",
        "acks": "int",
        "outcome": "string",
        "error": "string",
        "send_us": "bigint",
        "answer_us": "bigint",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "size_bytes": "bigint",
        "created_us": "bigint",
        "arrived_us": "bigint",
        "served_us": "bigint",
        "settled_us": "bigint",
        "transactional_id": "string",
        "epoch": "int",
        "transaction": "bigint",
        "equal_to": "bigint",
        "compaction": "string",
    },
    "reads": {
        "run_id": "string",
        "group": "string",
        "consumer": "bigint",
        "poll": "bigint",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "value_id": "bigint",
        "time_us": "bigint",
        "applied": "boolean",
        "isolation": "string",
        "fetch_offset": "bigint",
        "consumer_group": "string",
        "restarts": "int",
        "reading": "bigint",
        "delivery": "int",
        "acknowledged": "string",
    },
    "effects": {
        "run_id": "string",
        "group": "string",
        "consumer": "bigint",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "key": "bigint",
        "version": "bigint",
        "time_us": "bigint",
        "transaction": "bigint",
    },
    "commits": {
        "run_id": "string",
        "group": "string",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "time_us": "bigint",
        "transaction": "bigint",
        "held": "boolean",
    },
    "transactions": {
        "run_id": "string",
        "transaction": "bigint",
        "transactional_id": "string",
        "epoch": "int",
        "outcome": "string",
        "ended_by": "string",
        "epoch_us": "bigint",
        "begun_us": "bigint",
        "decided_us": "bigint",
        "ended_us": "bigint",
    },
}
"""The columns of each table and their types, as Spark names them. Further columns are ignored."""

NULLABLE: Mapping[str, frozenset[str]] = {
    "operations": frozenset({"watch_keys"}),
    "sends": frozenset(
        {"error", "answer_us", "offset", "created_us", "arrived_us", "served_us", "settled_us"}
        | {"transactional_id", "epoch", "transaction", "equal_to", "compaction"}
    ),
    "reads": frozenset(
        {"isolation", "fetch_offset", "consumer_group", "restarts", "reading", "delivery"}
        | {"acknowledged"}
    ),
    "effects": frozenset({"transaction"}),
    "commits": frozenset({"transaction", "held"}),
    "transactions": frozenset({"ended_by", "epoch_us", "decided_us", "ended_us"}),
}
"""The columns that may be null, and may be missing."""

IDS = frozenset({"producer", "consumer", "key", "value_id", "equal_to", "transaction"})
"""The columns, in all tables, that are identifiers only, and so may be texts, too."""

DERIVED: Mapping[str, Mapping[str, str]] = {
    "operations": {"wait_us": "try_subtract(end_us, start_us)", "keys": "size(watch_keys)"}
}
"""The value of a null or missing column, as an expression of Spark over the other columns."""


@dataclass(frozen=True)
class Rule:
    """A rule of rows: an SQL condition that is true of invalid rows."""

    reason: str
    condition: str
    detail: str
    """An SQL expression for the text of the error."""


TIME = "impossible time"
NEGATIVE = "negative number"
LARGE = "number too large"
UNKNOWN = "unknown value"
MISSING = "missing column"

_LARGEST = 2**53
"""285 years of microseconds: a sum of two fits 64 bits, and a double has them exactly."""


def _times(*columns: str) -> tuple[Rule, ...]:
    return tuple(
        Rule(TIME, f"`{name}` NOT BETWEEN 0 AND {_LARGEST}", f"concat('{name} is ', `{name}`)")
        for name in columns
    )


def _in_order(*columns: str) -> Rule:
    """A rule for times in ascending order."""
    pairs = combinations(columns, 2)
    condition = " or ".join(f"`{later}` < `{earlier}`" for earlier, later in pairs)
    values = ", ".join(f"'{name}', `{name}`" for name in columns)
    return Rule(TIME, condition, f"concat_ws(' ', {values})")


def _negative(*columns: str) -> tuple[Rule, ...]:
    return tuple(
        Rule(NEGATIVE, f"`{name}` < 0", f"concat('{name} is ', `{name}`)") for name in columns
    )


def _large(*columns: str) -> tuple[Rule, ...]:
    return tuple(
        Rule(LARGE, f"`{name}` > {_LARGEST}", f"concat('{name} is ', `{name}`)") for name in columns
    )


def _choice_rule(column: str, *values: str | int) -> Rule:
    choices = ", ".join(f"'{value}'" if isinstance(value, str) else str(value) for value in values)
    *others, last = map(str, values)
    choices_text = f"{', '.join(others)} or {last}: values in a mapping translate others"
    return Rule(
        UNKNOWN,
        f"`{column}` NOT IN ({choices})",
        f"concat('{column} is ', `{column}`, ', and must be {choices_text}')",
    )


RULES: Mapping[str, tuple[Rule, ...]] = {
    "operations": (
        *_times("start_us"),
        Rule(
            TIME,
            "end_us < start_us",
            "concat('end_us ', end_us, ' is before start_us ', start_us)",
        ),
        *_times("end_us"),
        Rule(
            TIME,
            "wait_us <> try_subtract(end_us, start_us)",
            "concat('wait_us is ', wait_us, ', and lasts ', try_subtract(end_us, start_us))",
        ),
        *_negative("keys", "timeout_ms"),
        Rule(
            MISSING,
            "case when size(watch_keys) = 1 then get(watch_keys, 0) is null "
            "else size(array_compact(watch_keys)) < size(watch_keys) end",
            "'watch_keys has a null, and must have texts'",
        ),
    ),
    "sends": (
        *_times("send_us"),
        Rule(
            TIME,
            "answer_us < send_us",
            "concat('answer_us ', answer_us, ' is before send_us ', send_us)",
        ),
        *_times("answer_us", "created_us", "arrived_us", "served_us", "settled_us"),
        _in_order("arrived_us", "served_us", "settled_us"),
        *_negative("sequence", "attempt", "partition", "offset", "size_bytes"),
        *_large("sequence", "offset", "size_bytes"),
        _choice_rule("outcome", "ok", "fail", "unknown"),
        _choice_rule("acks", 0, 1, -1),
        _choice_rule("compaction", "key", "tombstone"),
    ),
    "reads": (
        *_times("time_us"),
        *_negative("poll", "partition", "offset", "fetch_offset", "restarts", "delivery"),
        *_large("poll", "offset", "fetch_offset"),
        _choice_rule("isolation", "read_uncommitted", "read_committed"),
        _choice_rule("acknowledged", "accept", "release", "reject"),
    ),
    "effects": (
        *_times("time_us"),
        *_negative("partition", "offset", "version"),
        *_large("offset"),
    ),
    "commits": (*_times("time_us"), *_negative("partition", "offset"), *_large("offset")),
    "transactions": (
        *_times("epoch_us", "begun_us", "decided_us", "ended_us"),
        _in_order("epoch_us", "begun_us", "decided_us", "ended_us"),
        *_negative("epoch"),
        _choice_rule("outcome", "committed", "aborted", "open"),
    ),
}
"""The rules of each table, in the order in which they are checked; null fits each."""
