"""Traces with all kinds of dirt, by a seed: lines of JSON, and Parquet of other types."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.trace.trace_schema import IDS, NULLABLE, TABLES

MAPPING = {
    "operations": {
        "start_us": {"from": "start us"},
        "end_us": "END",
        "timeout_ms": {"from": "timeout"},
        "kind": {"value": "it's \\ a\tkind"},
        "keys": {"value": 3},
    },
    "sends": {
        "outcome": {"from": "type", "values": {"info": "unknown", "it's": "ok", "1": "fail"}},
        "acks": {"from": "acks", "values": {"all": -1, "true": 1, "": 0}},
        "producer": {"from": "process", "values": {"nemesis": "it's \\ none", "7": 8}},
        "transaction": {"value": "the only one"},
    },
    "reads": {"applied": {"value": True}, "partition": 'Shard `"1'},
    "commits": {"held": {"from": "held", "values": {"yes": True, "1": False}}},
}
"""Other names; the tables that it does not name are read as they are."""

_WORDS: dict[tuple[str, str], list[Any]] = {
    ("sends", "outcome"): ["ok", "fail", "unknown"],
    ("sends", "acks"): [0, 1, -1],
    ("reads", "isolation"): ["read_committed", "read_uncommitted"],
    ("transactions", "outcome"): ["committed", "aborted", "open"],
}
_IDS = [
    "a",
    "A",
    "",
    "7",
    "07",
    "+7",
    "-7",
    " 7",
    "7 ",
    "7\n",
    "-0",
    "7.0",
    "1e3",
    "0x7",
    "ü",
    "\uff55",
    "u\u0308",
]
_IDS += ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "true", "[a", "3f2e"]
"""Texts that only a careless reader takes for the same, or for numbers."""

_ODD: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    7,
    2**31 - 1,
    2**31,
    -(2**31) - 1,
    2**63 - 1,
    -(2**63),
    2**63,
    10**30,
    1.5,
    -0.0,
    "",
    "7",
    " +7\t",
    "-",
    "1.5",
    "1e3",
    "٣",
    "2.0",
    2.0,
    "2026-11-01T12:00:00.5+05:30",
    "2026-11-01",
    "true",
    "TRUE",
    "null",
    "[",
    '["a",null]',
    '["a"] and more',
    "[1,2",
    "{",
    "ü\u2028\U0001f600",
    "\ud800",
    "\x00",
    "it's",
    [],
    ["a", None],
    [1, 1.5, True, None, {"b": [1.0, "\t"]}, "\ud800"],
    {},
    {"a": [1, {"b": None}]},
]
_TORN = [b"", b" \t\r", b"null", b"7", b"{}", b"[]", b"{", b"\x00", b"\xff", b"{}{}", b"{},{}"]
_INTEGERS: list[pa.DataType] = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
]
_TEXTS = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]


class DirtyTraces:
    """Writes traces.

    Args:
        seed: what they come from.
        mapping: where columns of other names are.
    """

    def __init__(self, seed: int, mapping: dict[str, dict[str, Any]] | None = None) -> None:
        self._chance = random.Random(seed)
        self._mapping = mapping or {}

    def write_json(self, folder: Path, rows: int) -> None:
        """A run in lines of JSON."""
        folder.mkdir(parents=True)
        for table in TABLES:
            ending = self._chance.choice([b"\n", b"\r\n", b"\n\n"])
            lines = [self._line(table) for _ in range(rows)]
            text = self._chance.choice([b"", b"\xef\xbb\xbf"]) + ending.join(lines)
            if self._chance.random() < 0.3:
                (folder / f"{table}.jsonl.gz").write_bytes(gzip.compress(text))
            else:
                (folder / f"{table}.jsonl").write_bytes(text)

    def write_parquet(self, folder: Path, rows: int, parts: int = 2) -> None:
        """A run in Parquet; columns may be of other types, or missing."""
        for table in TABLES:
            (folder / table).mkdir(parents=True)
            for part in range(parts):
                columns = dict(self._columns(table, rows, folder.name))
                path = folder / table / f"part-{part:05}.parquet"
                pq.write_table(pa.table(columns), path, row_group_size=max(1, rows // 3))
        head = {"schema_version": 3, "run_id": folder.name, "scenario": "dirty", "seed": 1}
        head |= {"complete": False, "duration_ms": 0, "tables": {}}
        (folder / "run.json").write_text(json.dumps(head), encoding="utf-8")

    def _line(self, table: str) -> bytes:
        chance = self._chance
        if chance.random() < 0.05:
            return chance.choice(_TORN)
        row = {self._name(table, name): self._value(table, name) for name in TABLES[table]}
        row.pop("run_id", None)
        for name in TABLES[table]:
            said = self._mapping.get(table, {}).get(name)
            texts = name in IDS or (isinstance(said, dict) and "values" in said)
            if texts and chance.random() < 0.4 and row.get(self._name(table, name)) is not None:
                row[self._name(table, name)] = self._text(table, name, row[self._name(table, name)])
        for name in list(row):
            if chance.random() < 0.03:
                row[name] = chance.choice(_ODD)
            elif chance.random() < 0.01:
                row[name.upper()] = row.pop(name)
        separators = chance.choice([None, (",", ":")])
        text = json.dumps(row, ensure_ascii=chance.random() < 0.5, separators=separators)
        line = text.encode("utf-8", "surrogatepass")
        if chance.random() < 0.05:
            line = line.replace(b"}", b', "topic": null, "group": "twice", "kind": "twice"}')
        if chance.random() < 0.05:
            at = chance.randrange(len(line))
            line = line[:at] + chance.choice(
                [b"", b"}", b"{", b'"', b",", b"\xc3", b" ", b"0", b"N"]
            )
            line += text.encode("utf-8", "replace")[at + chance.randrange(2) :]
        return line.replace(b"\n", b"")

    def _columns(self, table: str, rows: int, run_id: str) -> list[tuple[str, pa.Array]]:
        chance = self._chance
        columns = []
        for name, kind in TABLES[table].items():
            values = [self._value(table, name) for _ in range(rows)]
            if name == "run_id":
                values = [chance.choice([run_id, run_id, run_id, None, "other"]) for _ in values]
            if name in NULLABLE[table] and chance.random() < 0.3:
                continue
            said = self._mapping.get(table, {}).get(name)
            said, given = said if isinstance(said, dict) else {}, kind
            if "values" in said or (name in IDS and chance.random() < 0.3):
                given = "string"
                values = [None if one is None else self._text(table, name, one) for one in values]
            columns.append((self._name(table, name), self._array(given, values)))
            if chance.random() < 0.05:
                columns.insert(0, (name.upper(), pa.array([b"twin"] * rows)))
        return columns

    def _text(self, table: str, name: str, value: Any) -> str:
        """A text in place of a value."""
        mapped = self._mapping.get(table, {}).get(name)
        texts = list(mapped.get("values", ())) if isinstance(mapped, dict) else []
        texts += _IDS if name in IDS else []
        own = value if isinstance(value, str) else json.dumps(value)
        return str(self._chance.choice([own, self._chance.choice([*texts, own])]))

    def _array(self, kind: str, values: list[Any]) -> pa.Array:
        chance = self._chance
        if kind == "boolean":
            return pa.array(values, pa.bool_())
        if kind == "string":
            return pa.array(values, pa.string()).cast(chance.choice(_TEXTS))
        if kind.startswith("array"):
            return pa.array(values, pa.list_(pa.string()))
        right = {"int": pa.int32(), "bigint": pa.int64()}[kind]
        given = chance.choice([right, *_INTEGERS])
        return pa.array([_as_kind(value, given) for value in values], given)

    def _name(self, table: str, name: str) -> str:
        said = self._mapping.get(table, {}).get(name, name)
        return str(said.get("from", name) if isinstance(said, dict) else said)

    def _value(self, table: str, name: str) -> Any:
        """A value of the right type, now and then one that a rule refuses."""
        chance, kind = self._chance, TABLES[table][name]
        nulls = 0.9 if name == "wait_us" else 0.3 if name in NULLABLE[table] else 0.01
        if chance.random() < nulls:
            return None
        words = _WORDS.get((table, name))
        if words is not None and chance.random() < 0.95:
            return chance.choice(words)
        if kind == "string":
            return chance.choice(["orders", "a b", "ü", "7", "it's"])
        if kind == "boolean":
            return chance.random() < 0.5
        if kind.startswith("array"):
            return chance.choice([[], ["a"], ["a", None, "ü"]])
        if name.endswith("_us") and chance.random() < 0.97:
            order = ("start", "send", "time", "epoch", "begun", "decided", "answer", "end", "ended",
                     "arrived", "served", "settled")  # fmt: skip
            place = [at for at, word in enumerate(order) if name == f"{word}_us"]
            return 100 * sum(place) + chance.randrange(3)
        largest = 2**31 - 1 if kind == "int" else 2**63 - 1
        odd = chance.choice([0, -1, largest, -largest - 1])
        return chance.randrange(100) if chance.random() < 0.97 else odd


def _as_kind(value: int | None, kind: pa.DataType) -> int | None:
    """A number as a type has it, cut to its bits."""
    if value is None:
        return None
    bits: int = kind.bit_width
    number = value % (1 << bits)
    signed = not str(kind).startswith("u") and number >= 1 << (bits - 1)
    return number - (1 << bits) if signed else number
