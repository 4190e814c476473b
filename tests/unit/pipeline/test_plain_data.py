"""Plain data as a trace: tables of sends and reads in Parquet, JSON lines or CSV, and no more."""

from __future__ import annotations

import csv
import gzip
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import purgatory
from purgatory.cli.main import program
from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.duckdb_reader import read_tables
from purgatory.pipeline.ingest.trace_set import read_trace_set

Table = Sequence[Mapping[str, Any]]
DOCUMENT = Path(__file__).parents[3] / "docs" / "traces.md"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SENDS: Table = [
    {"topic": "orders", "shard": 0, "place": 0, "id": "a", "status": "acked", "at": NOON},
    {"topic": "orders", "shard": 0, "place": 1, "id": "b", "status": "acked", "at": NOON},
    {"topic": "orders", "shard": 0, "place": 2, "id": "c", "status": "acked", "at": NOON},
]
READS: Table = [
    {"topic": "orders", "shard": 0, "place": 0, "id": "a"},
    {"topic": "orders", "shard": 0, "place": 2, "id": "c"},
]
MAPPING = """
[sends]
partition = "shard"
offset = "place"
value_id = "id"
send_us = "at"
outcome = { from = "status", values = { acked = "ok" } }

[reads]
partition = "shard"
offset = "place"
value_id = "id"
"""


def write_parquet(path: Path, rows: Table) -> None:
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)


def write_csv(path: Path, rows: Table) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_json(path: Path, rows: Table) -> None:
    path.write_text("".join(f"{json.dumps(row, default=datetime.isoformat)}\n" for row in rows))


def _microseconds(time: datetime) -> int:
    return int(time.timestamp() * 1_000_000)


WRITERS: Mapping[str, Callable[[Path, Table], None]] = {
    "parquet": write_parquet,
    "csv": write_csv,
    "jsonl": write_json,
}


@pytest.fixture
def mapping(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(MAPPING)
    return path


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("in_folders", [False, True], ids=["files", "folders"])
def test_plain_data_is_audited(kind: str, in_folders: bool, tmp_path: Path, mapping: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for table, rows in (("sends", SENDS), ("reads", READS)):
        path = folder / f"{table}.{kind}"
        if in_folders:
            (folder / table).mkdir()
            path = folder / table / f"january.{kind}"
        WRITERS[kind](path, rows)
    found = purgatory.audit(folder, expect=["no-loss"], mapping=mapping)
    (lost,) = [one for one in found.violations if one.anomaly == "lost_write"]
    (event,) = lost.witnesses[0]["events"]
    assert (event["value_id"], event["offset"]) == ("b", 1)
    assert event["time_us"] == _microseconds(NOON)
    assert found.basis.startswith("judged: 3 sent, 3 acknowledged, 2 read, 0 committed, 0 applied")
    assert found.unchecked["retry_reorder"] == "no column sequence in sends"
    assert found.unchecked["effect_duplicate"] == "no column applied in reads"
    assert {one.anomaly for one in found.undecided} == set()


@pytest.mark.parametrize("kind", WRITERS)
def test_whole_numbers_may_be_floats_as_pandas_has_them(kind: str, tmp_path: Path) -> None:
    place = {"topic": "orders", "partition": 0}
    sends = [
        {**place, "partition": 0.0, "offset": offset, "value_id": n, "outcome": "ok"}
        for n, offset in enumerate([0.0, None, 2.0, 3.5])
    ]
    WRITERS[kind](tmp_path / f"sends.{kind}", sends)
    WRITERS[kind](tmp_path / f"reads.{kind}", [{**place, "offset": 2, "value_id": 2}])
    found = purgatory.audit(tmp_path, expect=["no-loss"])
    assert found.basis.startswith("judged: 3 sent, 3 acknowledged, 1 read")
    assert "left out: 1 row (sends: wrong type)" in found.basis
    assert found.count("lost_write") == 1, "no one knows where the second was stored"


PLACE = {"topic": "t", "partition": 0, "offset": 0, "value_id": "a"}
ENDINGS = {
    ".csv.gz": write_csv,
    ".json": write_json,
    ".json.gz": write_json,
    ".jsonl.gz": write_json,
    ".ndjson": write_json,
    ".ndjson.gz": write_json,
    ".snappy.parquet": write_parquet,
    ".zstd.parquet": write_parquet,
}


def read_rows(folder: Path) -> list[tuple[str, int, int]]:
    """The place of each read, as every job has them; nothing is left out."""
    with duckdb.connect() as connection:
        check = read_tables(connection, read_trace_set([folder]), ["reads"])
        assert check.is_clean
        query = 'SELECT topic, partition, "offset" FROM reads ORDER BY ALL'
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("in_folder", [False, True], ids=["file", "folder"])
def test_files_are_read_by_the_endings_that_programs_give_them(
    ending: str, in_folder: bool, tmp_path: Path
) -> None:
    path = tmp_path / f"reads{ending}"
    if in_folder:
        (tmp_path / "reads").mkdir()
        path = tmp_path / "reads" / f"part-00000{ending}"
    ENDINGS[ending](path, [PLACE])
    if ending.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert read_rows(tmp_path) == [("t", 0, 0)]


@pytest.mark.parametrize("name", ["reads.xlsx", "reads.csv.zst", "reads/january.tsv"])
def test_file_in_another_format_is_left_out_by_name(name: str, tmp_path: Path) -> None:
    write_csv(tmp_path / "sends.csv", [PLACE])
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"anything")
    result = CliRunner().invoke(program, ["audit", str(tmp_path), "--engine", "duckdb"])
    assert "left out: 1 file (reads: torn file)" in result.output
    assert f"{path}: is not read; write reads as .parquet, .csv, " in result.output
    assert result.exit_code == 3


def test_list_in_one_file_of_json_is_left_out_by_name(tmp_path: Path) -> None:
    write_csv(tmp_path / "sends.csv", [PLACE])
    (tmp_path / "reads.json").write_text(json.dumps([PLACE], indent=1))
    with pytest.raises(TraceError, match=r"reads.json: is one list; .* lines=True"):
        read_trace_set([tmp_path], strict=True)


def test_csv_may_have_long_cells(tmp_path: Path) -> None:
    write_csv(tmp_path / "reads.csv", [{**PLACE, "value_id": "a" * 200_000}])
    assert read_rows(tmp_path) == [("t", 0, 0)]


@pytest.mark.parametrize(
    ("encoding", "told"),
    [
        ("utf-8-sig", ["2 read,"]),
        ("latin-1", ["1 read,", "left out: 1 row (reads: torn line)"]),
        ("utf-16", ["nothing was judged: 1 file (reads: torn file)"]),
    ],
)
def test_row_of_csv_in_another_encoding_is_quarantined(
    encoding: str, told: Sequence[str], tmp_path: Path
) -> None:
    path = tmp_path / "reads.csv"
    write_csv(path, [PLACE, {**PLACE, "topic": "Bücher"}])
    path.write_bytes(path.read_text("utf-8").encode(encoding))
    basis = purgatory.audit(tmp_path).basis
    assert [part for part in told if part not in basis] == [], basis


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_cells_of_csv_may_have_other_marks_between_them(mark: str, tmp_path: Path) -> None:
    write_csv(tmp_path / "reads.csv", [PLACE, {**PLACE, "topic": "a,b", "offset": 1}])
    text = (tmp_path / "reads.csv").read_text().replace('"', "")
    lines = [line.replace(",", mark, line.count(",")) for line in text.splitlines()]
    lines[2] = lines[2].replace(f"a{mark}b", "a,b")
    (tmp_path / "reads.csv").write_text("\n".join(lines))
    assert read_rows(tmp_path) == [("a,b", 0, 1), ("t", 0, 0)]


@pytest.mark.parametrize("inner", ["topic=orders/partition=0/data_0.parquet", "2026/11/1.csv"])
def test_file_in_a_folder_of_a_table_is_left_out_by_name(inner: str, tmp_path: Path) -> None:
    write_csv(tmp_path / "sends.csv", [PLACE])
    path = tmp_path / "reads" / inner
    path.parent.mkdir(parents=True)
    WRITERS[path.suffix[1:]](path, [PLACE])
    for beside in (False, True):
        if beside:
            write_csv(tmp_path / "reads" / "one.csv", [PLACE])
        trace_set = read_trace_set([tmp_path])
        [file] = trace_set.quarantined
        assert (file.path, file.reason, file.table) == (path, "nested file", "reads")
        assert "is in a folder within that of reads, which is not read" in file.detail
        assert not trace_set.traces[0].complete
    (tmp_path / "sends.csv").unlink()
    (tmp_path / "reads" / "one.csv").unlink()
    with pytest.raises(TraceError, match=r"contains no trace .* its files are in folders within"):
        read_trace_set([tmp_path])


def test_folder_without_a_trace_is_refused_with_its_files(tmp_path: Path) -> None:
    write_csv(tmp_path / "orders.csv", [PLACE])
    with pytest.raises(TraceError, match=r"sends and reads as .*; it has orders.csv; write one"):
        read_trace_set([tmp_path])
    with pytest.raises(TraceError, match=r"orders.csv: is a file; give its folder: .* sends and"):
        read_trace_set([tmp_path / "orders.csv"])


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_number_of_eight_digits_is_no_date(kind: str, tmp_path: Path) -> None:
    place = {"topic": "t", "partition": 0, "value_id": "a"}
    rows = [{**place, "offset": 0, "time_us": 20_251_231}]
    WRITERS[kind](tmp_path / f"reads.{kind}", rows)
    with duckdb.connect() as connection:
        read_tables(connection, read_trace_set([tmp_path]))
        assert connection.execute("SELECT time_us FROM reads").fetchall() == [(20_251_231,)]


def test_expectation_without_its_columns_is_not_decided(tmp_path: Path, mapping: Path) -> None:
    write_csv(tmp_path / "sends.csv", SENDS)
    write_csv(tmp_path / "reads.csv", READS)
    found = purgatory.audit(tmp_path, expect=["one-writer"], mapping=mapping)
    with pytest.raises(AssertionError, match=r"no column producer in sends .*: .*multi_writer"):
        found.assert_no_violations()


def test_columns_that_are_missing_are_named_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    write_csv(folder / "sends.csv", SENDS)
    write_csv(folder / "reads.csv", READS)
    result = CliRunner().invoke(program, ["audit", str(folder), "--engine", "duckdb"])
    assert result.exit_code == 3
    first, *details = result.output.splitlines()
    assert first.startswith("mine: nothing was judged: 1 file (reads: missing column), 1 file (")
    assert "sends lacks value_id (which record it is: any id or text" in " ".join(details[:2])
    assert "partition (its number, or { value = 0 })" in details[0]
    assert "reads lacks partition" in " ".join(details[:2])
    assert "It has topic, shard, place, id" in " ".join(details[:2])
    with pytest.raises(TraceError, match=r"sends lacks value_id .* partition"):
        read_trace_set([folder], strict=True)


def test_first_bad_row_of_each_reason_is_shown(tmp_path: Path) -> None:
    row = {"topic": "orders", "partition": 0, "offset": 0, "value_id": "a"}
    write_csv(tmp_path / "sends.csv", [{**row, "outcome": "success"}, {**row, "outcome": "done"}])
    write_csv(tmp_path / "reads.csv", [row])
    result = CliRunner().invoke(program, ["audit", str(tmp_path), "--engine", "duckdb"])
    assert "left out: 2 rows (sends: unknown value)" in result.output.splitlines()[0]
    assert f"\n  {tmp_path / 'sends.csv'}:2: outcome is success" in result.output
    assert "done" not in result.output


def test_mapping_may_be_data_or_the_path_of_a_file(tmp_path: Path, mapping: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    write_csv(folder / "sends.csv", SENDS)
    write_csv(folder / "reads.csv", READS)
    for given in (mapping, str(mapping), tomllib.loads(MAPPING)):
        assert purgatory.audit(folder, mapping=given).basis.startswith("judged: 3 sent, 3 ack")
    with pytest.raises(
        TraceError, match=r"mapping: sends\.offse: there is no such column; did you"
    ):
        purgatory.audit(folder, mapping={"sends": {"offse": "place"}})


def test_torn_row_of_csv_is_quarantined_by_its_line(tmp_path: Path, mapping: Path) -> None:
    write_csv(tmp_path / "sends.csv", SENDS)
    write_csv(tmp_path / "reads.csv", READS)
    with (tmp_path / "reads.csv").open("a") as file:
        file.write('orders,0\norders,0,1,"b"\n')
    found = purgatory.audit(tmp_path, mapping=mapping)
    assert "3 read" in found.basis
    assert "left out: 1 row (reads: torn line)" in found.basis
    assert found.count("lost_write") == 0


OPERATION = {
    "broker": 1,
    "purgatory": "Poll",
    "operation": 0,
    "keys": 1,
    "timeout_ms": 9,
    "start_us": 5,
    "end_us": 7,
    "outcome": "completed",
    "kind": "client",
}


@pytest.mark.parametrize("kind", WRITERS)
def test_operations_need_no_run_as_the_folder_names_it(kind: str, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path / f"operations.{kind}", [OPERATION])
    result = CliRunner().invoke(program, ["waits", str(tmp_path), "--engine", "duckdb"])
    assert (result.exit_code, "Poll" in result.output) == (0, True), result.output


@pytest.mark.parametrize("job", ["waits", "occupancy", "analyze"])
def test_dates_are_refused_where_the_start_of_the_run_counts(job: str, tmp_path: Path) -> None:
    dates = {"start_us": "2026-11-01T12:00:00Z", "end_us": "2026-11-01T12:00:00.002Z"}
    trace, out = tmp_path / "trace", str(tmp_path / "out")
    trace.mkdir()
    write_csv(trace / "operations.csv", [OPERATION | dates])
    result = CliRunner().invoke(program, [job, str(trace), "--engine", "duckdb", "--out", out])
    if job == "waits":
        assert (result.exit_code, "Poll" in result.output) == (0, True), result.output
        return
    assert result.exit_code == 2
    assert "ends at 1793534400002000 us, which is 2026-11-01 12:00:00 UTC" in result.output
    assert "subtract its start from start_us and end_us" in result.output


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_operations_that_lack_columns_are_left_out_by_those(kind: str, tmp_path: Path) -> None:
    some = {name: OPERATION[name] for name in ("start_us", "end_us", "outcome")}
    WRITERS[kind](tmp_path / f"operations.{kind}", [some])
    result = CliRunner().invoke(program, ["waits", str(tmp_path), "--engine", "duckdb"])
    assert result.exit_code == 3
    output = " ".join(result.output.split())
    assert "operations lacks broker; purgatory; operation; timeout_ms; kind" in output
    assert "It has start_us, end_us, outcome: name them by --mapping" in output
    assert "incomplete: files of this run are missing, or left out" in output
    assert "interrupted" not in output


@pytest.mark.parametrize(
    ("job", "tables", "told"),
    [
        ("waits", ("sends", "reads"), "has sends and reads: purgatory audit judges those"),
        ("occupancy", ("sends",), "has sends: purgatory audit judges those"),
        ("audit", ("operations",), "has operations: purgatory waits and occupancy judge those"),
    ],
)
def test_trace_without_the_tables_of_a_job_names_what_it_has(
    job: str, tables: Sequence[str], told: str, tmp_path: Path
) -> None:
    for table in tables:
        write_csv(tmp_path / f"{table}.csv", [OPERATION if table == "operations" else PLACE])
    result = CliRunner().invoke(program, [job, str(tmp_path), "--engine", "duckdb"])
    assert result.exit_code == 3
    output = " ".join(result.output.split())
    assert told in output
    needed = "sends and reads" if job == "audit" else "the table operations"
    assert f"{job} needs {needed}" in output


def test_document_begins_with_data_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = DOCUMENT.read_text()
    section = text[text.index("## My own data in ten lines") :]
    assert text.index("## My own data in ten lines") == text.index("## ")
    python, shown = re.findall(r"^```(?:python)?\n(.*?)^```$", section, re.M | re.S)[:2]
    assert len(list(filter(None, python.splitlines()))) <= 10
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    exec(compile(python, str(DOCUMENT), "exec"), {"print": lambda text: printed.append(str(text))})
    for line in shown.splitlines():
        assert line.removesuffix(" ...") in "\n".join(printed)
