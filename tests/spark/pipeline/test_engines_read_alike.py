"""Dirty traces: both engines have the same rows of them, and the same quarantine, cell by cell."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.engines.spark.sql_engine import sql_settings
from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.column_casts import NANOS_AS_LONG
from purgatory.pipeline.ingest.spark_reader import TableRows
from purgatory.pipeline.ingest.trace_set import read_trace_set
from purgatory.trace.trace_schema import TABLES
from tests.spark.pipeline.dirty_traces import MAPPING, DirtyTraces
from tests.spark.pipeline.reading_engines import (
    FoundRows,
    ReadingDuckdb,
    ReadingEngine,
    ReadingSpark,
    Rows,
)
from tests.spark.pipeline.test_quarantine import LINES, ROWS

NOON = 1_793_534_400_000_000
"""Noon of the first of November 2026 in UTC, in microseconds since 1970."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("seed", "mapping", "parts"),
    [
        # Each further part of a table has columns of other types, and costs Spark's plans anew.
        (1, MAPPING, 1),
        pytest.param(1, MAPPING, 2, marks=pytest.mark.exhaustive),
        pytest.param(2, None, 2, marks=pytest.mark.exhaustive),
    ],
)
def test_both_engines_read_the_same_rows(
    spark: SparkSession,
    tmp_path: Path,
    seed: int,
    mapping: dict[str, dict[str, Any]] | None,
    parts: int,
) -> None:
    dirty = DirtyTraces(seed, mapping)
    dirty.write_json(tmp_path / "lines", 200)
    dirty.write_json(tmp_path / "more lines", 40)
    dirty.write_parquet(tmp_path / "parts", 50, parts)
    engines: list[ReadingEngine] = [ReadingSpark(spark), ReadingDuckdb()]
    by_spark, by_duckdb = (engine.read(tmp_path, mapping) for engine in engines)
    check_alike(by_spark, by_duckdb)
    for reason in ("torn line", "wrong type", "row of another run", "impossible time"):
        assert reason in {row["reason"] for row in by_duckdb.quarantine}
    assert all(by_duckdb.rows(table) for table in TABLES)


def test_both_engines_read_lines_by_hand_alike(spark: SparkSession, tmp_path: Path) -> None:
    written = {"operations": [line for line, _ in LINES]}
    for table, row, _ in ROWS:
        written.setdefault(table, []).append(json.dumps(row).encode())
    for table, lines in written.items():
        (tmp_path / f"{table}.jsonl").write_bytes(b"\n".join(lines))
    by_spark, by_duckdb = ReadingSpark(spark).read(tmp_path), ReadingDuckdb().read(tmp_path)
    check_alike(by_spark, by_duckdb)
    assert len(by_spark.quarantine) > 30


def test_both_engines_read_plain_data_of_any_columns(spark: SparkSession, tmp_path: Path) -> None:
    place = {"topic": "t", "partition": 0, "offset": 0, "value_id": "a"}
    tables: Mapping[str, Mapping[str, Any]] = {
        "january": {"sends": place, "reads": place},
        "february": {"sends": place, "reads": place},
        "march": {"sends": {**place, "outcome": "ok", "acks": 1}, "reads": place},
        "floats": {"sends": {**place, "offset": 2.0}, "reads": {**place, "offset": 2.5}},
        "decimals": {
            "sends": {**place, "offset": Decimal("12.00")},
            "reads": {**place, "offset": Decimal("12.50")},
        },
        "digits": {"sends": {**place, "value_id": Decimal(10) ** 37}, "reads": place},
        "april": {"sends": {**place, "run_id": "spring"}, "reads": {**place, "applied": True}},
    }
    for folder, rows in tables.items():
        (tmp_path / folder).mkdir()
        for table, row in rows.items():
            pq.write_table(pa.Table.from_pylist([row]), tmp_path / folder / f"{table}.parquet")
    (tmp_path / "may").mkdir()
    (tmp_path / "may" / "reads.jsonl").write_text(json.dumps(place))
    by_spark, by_duckdb = ReadingSpark(spark).read(tmp_path), ReadingDuckdb().read(tmp_path)
    check_alike(by_spark, by_duckdb)
    sent = {row["run_id"]: (row["outcome"], row["acks"]) for row in by_duckdb.rows("sends")}
    assert sent == {
        "january": ("unknown", -1),
        "february": ("unknown", -1),
        "march": ("ok", 1),
        "floats": ("unknown", -1),
        "decimals": ("unknown", -1),
        "spring": ("unknown", -1),
    }
    traces = read_trace_set([tmp_path]).traces
    assert len(TableRows(spark, traces, "sends")._files) == 6
    right = {"decimals": "a whole number of 64 bits", "floats": "a whole number of 64 bits"}
    right["digits"] = "a text, or a whole number of 64 bits"
    assert [(row["run_id"], row["details"]) for row in by_spark.left_out] == [
        (run, [f"{tmp_path / run / table}.parquet:1: {column} must be {right[run]}"])
        for run, table, column in (
            ("decimals", "reads", "offset"),
            ("digits", "sends", "value_id"),
            ("floats", "reads", "offset"),
        )
    ]


TIMES: Mapping[Any, int | None] = {
    "2026-11-01T12:00:00Z": NOON,
    "2026-11-01T12:00:00": NOON,
    "2026-11-01 12:00:00": NOON,
    "2026-11-01T12:00": NOON,
    "2026-11-01T12:00Z": NOON,
    "2026-11-01T14:00+02": NOON,
    "2026-11-01T17:30:00+05:30": NOON,
    "2026-11-01T06:30:00-0530": NOON,
    "2026-11-01T12:00:00.5Z": NOON + 500_000,
    "2026-11-01T12:00:00.123456789": NOON + 123_456,
    "2026-11-01T12:00:00.9999999+00:00": NOON + 999_999,
    "2026-11-01": NOON - 12 * 3_600_000_000,
    "1970-01-01T00:00:00Z": 0,
    "20261101": 20_261_101,
    "7.0": 7,
    7.0: 7,
    7.5: None,
    1e3: 1_000,
    "1e3": None,
    "2026-02-30T12:00:00Z": None,
    "2026-11-01T24:00:00Z": None,
    "2026-11-01T12:00:00z": None,
    "2026-11-01T12:00:00Z\n": None,
    "0000-01-01T00:00:00Z": None,
    "12:00:00": None,
    "yesterday": None,
    "": None,
}


def test_both_engines_read_dates_and_floats_in_json_alike(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = {"topic": "t", "partition": 0.0, "value_id": "a"}
    rows = [{**place, "offset": n, "time_us": time} for n, time in enumerate(TIMES)]
    (tmp_path / "reads.jsonl").write_text("\n".join(map(json.dumps, rows)))
    by_spark, by_duckdb = ReadingSpark(spark).read(tmp_path), ReadingDuckdb().read(tmp_path)
    check_alike(by_spark, by_duckdb)
    found = {row["offset"]: row["time_us"] for row in by_duckdb.rows("reads")}
    assert [found.get(n) for n in range(len(TIMES))] == list(TIMES.values())


def test_both_engines_read_times_of_any_unit_alike(spark: SparkSession, tmp_path: Path) -> None:
    place = {"topic": "t", "partition": 0, "offset": 0, "value_id": "a"}
    for unit, zone in product(("ms", "us", "ns"), (None, "Europe/Berlin")):
        times = pa.array([NOON, NOON + 1_000, -1_000], pa.timestamp("us", zone))
        columns = {name: pa.array([value] * 3) for name, value in place.items()}
        columns["time_us"] = times.cast(pa.timestamp(unit, zone))
        (tmp_path / f"{unit} {zone is None}").mkdir()
        pq.write_table(pa.table(columns), tmp_path / f"{unit} {zone is None}" / "reads.parquet")
    with sql_settings(spark):  # which restores what other tests left there
        spark.conf.set(NANOS_AS_LONG, "false")
        with pytest.raises(TraceError, match=f"set {re.escape(NANOS_AS_LONG)} to true"):
            ReadingSpark(spark).read(tmp_path)
    with sql_settings(spark):
        by_spark, by_duckdb = ReadingSpark(spark).read(tmp_path), ReadingDuckdb().read(tmp_path)
        found = sorted(row["time_us"] for row in by_spark.rows("reads"))
        assert found == [NOON] * 6 + [NOON + 1_000] * 6
        assert found == sorted(row["time_us"] for row in by_duckdb.rows("reads"))
        places = [
            [(row["file"], row["line"], row["detail"]) for row in one.quarantine]
            for one in (by_spark, by_duckdb)
        ]
        assert places[0] == places[1] and len(places[0]) == 6


def test_both_engines_read_csv_alike(spark: SparkSession, tmp_path: Path) -> None:
    head = "topic,partition,offset,value_id,outcome,send_us,producer\n"
    for run, rows in CSV_ROWS.items():
        (tmp_path / run).mkdir()
        for table in ("sends", "reads"):
            text = head.replace("send_us", "time_us" if table == "reads" else "send_us") + rows
            (tmp_path / run / f"{table}.csv").write_bytes(text.encode("latin-1"))
    place = {"topic": "t", "partition": 0, "offset": 0, "value_id": "a"}
    (tmp_path / "mixed" / "sends").mkdir()
    pq.write_table(pa.Table.from_pylist([place]), tmp_path / "mixed" / "sends" / "one.parquet")
    (tmp_path / "mixed" / "reads.jsonl").write_text(json.dumps(place))
    by_spark, by_duckdb = ReadingSpark(spark).read(tmp_path), ReadingDuckdb().read(tmp_path)
    check_alike(by_spark, by_duckdb)
    assert len(by_spark.rows("sends")) == 3
    details = [row["detail"] for row in by_spark.quarantine if row["file"].endswith("sends.csv")]
    for detail in (
        'partition is "p0", and must be a whole number of 32 bits',
        f'send_us is "01/11/2026 12:00", and must be {MICROSECONDS}',
        "outcome is done, and must be ok, fail or unknown: values in a mapping translate others",
        "offset is -4",
    ):
        assert detail in details


MICROSECONDS = "microseconds, or a time such as 2026-11-01T12:00:00.5Z or 2026-11-01 13:00:00+01"
CSV_ROWS: Mapping[str, str] = {
    "good": "t,0,1.0,a,ok,2026-11-01T12:00:00Z,p\nt,0,,b,,7,1\n\nt,1,2,+7,fail,2026-11-01,01\n",
    "bad": (
        "t,p0,1,a,ok,1,p\nt,0,1,a,ok,01/11/2026 12:00,p\nt,0,1,a,done,1,p\nt,0,-4,a,ok,1,p\n"
        "t,0\nt,0,1,\xe9,ok,1,p\n,0,1,a,ok,1,p\n"
    ),
    "mixed": "t,0,1,a,ok,2026-11-01T12:00:00+02:00,p\n",
}


def check_alike(left: FoundRows, right: FoundRows) -> None:
    """Compare the rows that two engines read."""
    assert _with_parsed(left.quarantine) == _with_parsed(right.quarantine)
    assert left.counts == right.counts
    assert left.complete == right.complete
    assert left.left_out == right.left_out
    for table in TABLES:
        assert sorted(left.rows(table), key=str) == sorted(right.rows(table), key=str), table


def _with_parsed(quarantine: Rows) -> Rows:
    """A quarantine whose rows of Parquet are objects: engines write numbers in other ways."""
    return [row | {"content": _parsed(row)} for row in quarantine]


def _parsed(row: Mapping[str, Any]) -> Any:
    parquet = row["line"] is not None and row["file"].endswith(".parquet")
    return json.loads(row["content"]) if parquet else row["content"]
