"""Traces and results by URI, through a file system of Hadoop's with another scheme than `file`.

Spark brings no file system for S3. Hadoop's `ViewFileSystemOverloadScheme` takes the scheme's
place here, and keeps the files of a bucket in a folder: discovery, reading and writing go through
the same calls. Differences of S3 itself, such as a move that copies, are not tested.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.cli.main import main
from purgatory.pipeline.engines.result_folder import check_uri_output, uri_output_folder
from purgatory.pipeline.errors import OutputError, PipelineError, SessionError, TraceError
from purgatory.pipeline.ingest.hadoop_files import HadoopFiles
from purgatory.pipeline.ingest.spark_reader import read_traces
from purgatory.pipeline.ingest.stores import StoreError, Uri, parse_location, without_hadoop
from tests.spark.pipeline.one_session import run_all, without_clients_lines
from tests.spark.pipeline.test_quarantine import OPERATION

pytestmark = pytest.mark.spark

WriteTrace = Callable[..., Path]


class Bucket(NamedTuple):
    """A store, and the folder of this machine with its files."""

    uri: str
    folder: Path


@pytest.fixture(scope="module")
def bucket(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    """The folder that the scheme s3a finds as `bucket`; a store of another name does not exist."""
    folder = tmp_path_factory.mktemp("bucket")
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    view = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
    settings.set("fs.s3a.impl", view)
    settings.set("fs.viewfs.mounttable.bucket.link./data", folder.as_uri())
    return Bucket("s3a://bucket/data", folder)


@pytest.fixture
def store(bucket: Bucket) -> Iterator[Bucket]:
    """The bucket, empty."""
    yield bucket
    for one in bucket.folder.iterdir():
        if one.is_dir():
            shutil.rmtree(one)
        else:
            one.unlink()


def _tables(folder: Path) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for table in folder.iterdir():
        if table.is_dir():
            found[table.name] = pq.read_table(table).to_pylist()
    return found


def _names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir() if not one.name.endswith(".crc")}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("job", ["waits", pytest.param("occupancy", marks=pytest.mark.exhaustive)])
def test_commands_print_the_same_for_a_store_as_for_a_folder(
    job: str,
    spark: SparkSession,
    store: Bucket,
    write_trace: WriteTrace,
    hand_operations: list[Any],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    trace = write_trace(store.folder / "runs [1] %20" / "ü" / "first", hand_operations, parts=2)
    statuses = run_all(
        spark,
        "local[2]",
        [
            [job, traces, "--out", f"{out}/{job}"]
            for traces, out in (
                (str(trace), str(tmp_path)),
                (f"{store.uri}/runs [1] %20", f"{store.uri}/results"),
            )
        ],
    )
    assert statuses == [0] * 2
    assert f"Tables: {store.uri}/results/{job}" in capfd.readouterr().out
    written = store.folder / "results" / job
    assert _tables(written) == _tables(tmp_path / job) != {}
    assert _names(written) - _names(tmp_path / job) == {"_SUCCESS"}
    assert _names(store.folder / "results") == {job}  # and nothing that was in the making


@pytest.mark.exhaustive
def test_analyze_writes_its_page_at_a_uri(
    spark: SparkSession, store: Bucket, write_trace: WriteTrace, hand_operations: list[Any]
) -> None:
    write_trace(store.folder / "run", hand_operations)
    command = ["analyze", f"{store.uri}/run", "--out", f"{store.uri}/report"]
    assert run_all(spark, "local[2]", [command]) == [0]
    assert "</html>" in (store.folder / "report" / "report.html").read_text(encoding="utf-8")
    [run] = pq.read_table(store.folder / "report" / "runs").to_pylist()
    assert run["folder"] == f"{store.uri}/run"


def test_quarantine_and_strict_error_name_the_uri(
    spark: SparkSession, store: Bucket, write_trace: WriteTrace, hand_operations: list[Any]
) -> None:
    write_trace(store.folder / "a" / "run", hand_operations, parts=2)
    (store.folder / "a" / "run" / "operations" / "part-00001.parquet").write_bytes(b"torn")
    (store.folder / "a" / "run" / "reads" / "part-00001.parquet.part").touch()
    lines = store.folder / "a" / "lines of json"
    lines.mkdir()
    wrong = json.dumps({**OPERATION, "start_us": "soon"})
    with gzip.open(lines / "operations.jsonl.gz", "wt") as file:
        file.write(f"{json.dumps(OPERATION)}\n{wrong}\n")
    whole = (lines / "operations.jsonl.gz").read_bytes()
    (lines / "sends.jsonl.gz").write_bytes(whole[:-9])
    found = read_traces(spark, f"{store.uri}/a/")
    assert {row.run_id: row.complete for row in found.runs.collect()} == {
        "by-hand-1": False,
        "lines of json": False,
    }
    assert found.operations.count() == len(hand_operations) // 2 + 1
    told = {(row["file"], row["line"], row["reason"]) for row in found.quarantine.collect()}
    assert told == {
        (f"{store.uri}/a/run/operations/part-00001.parquet", None, "torn file"),
        (f"{store.uri}/a/run/reads/part-00001.parquet.part", None, "unfinished file"),
        (f"{store.uri}/a/lines of json/operations.jsonl.gz", 2, "wrong type"),
        (f"{store.uri}/a/lines of json/sends.jsonl.gz", None, "torn file"),
    }
    with pytest.raises(TraceError, match=rf"{store.uri}/a/.*: can't be read"):
        read_traces(spark, [f"{store.uri}/a"], strict=True)


def test_root_is_listed_once(
    spark: SparkSession, store: Bucket, write_trace: WriteTrace, hand_operations: list[Any]
) -> None:
    for number in range(5):
        write_trace(store.folder / "runs" / str(number), hand_operations, run_id=f"run-{number}")
    with (
        (
            patch.object(
                HadoopFiles, "files_below", autospec=True, side_effect=HadoopFiles.files_below
            )
        ) as lists,
        patch.object(HadoopFiles, "status", autospec=True, side_effect=HadoopFiles.status) as asks,
    ):
        found = read_traces(spark, f"{store.uri}/runs")
    assert [trace.run_id for trace in found.traces] == [f"run-{number}" for number in range(5)]
    assert (lists.call_count, asks.call_count) == (1, 1)


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ("foo://store/runs", 'foo://store/runs: .*No FileSystem for scheme "foo"'),
        ("s3://store/runs", "; Spark reads it as s3a://, and --engine duckdb as it is"),
        ("{store}/nowhere", "{store}/nowhere: there is no such folder"),
        ("{store}/file", "{store}/file: is a file"),
        ("{store}/empty", "{store}/empty: contains no trace"),
        ("s3a://other/runs", "s3a://other/runs: "),
        ("abfss://box@account/runs", "set PYSPARK_SUBMIT_ARGS='--packages .*:hadoop-azure:3"),
        ("hdfs://127.0.0.1:1/runs", "Connection refused"),
        ("file://runs", "as in file:///runs"),
    ],
)
def test_unreadable_uri_is_one_line(
    spark: SparkSession,
    store: Bucket,
    trace: str,
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (store.folder / "empty").mkdir()
    (store.folder / "file").touch()
    asked = trace.format(store=store.uri)
    assert run_all(spark, "local[2]", [["waits", asked]]) == [2]
    [line] = without_clients_lines(capfd.readouterr().err).splitlines()
    with pytest.raises(AssertionError, match=message.format(store=store.uri)):
        raise AssertionError(line)


def test_duckdb_accepts_folders_and_s3() -> None:
    assert without_hadoop(Path("a")) == Path("a")
    for text in ("s3a://bucket/x", "S3://bucket/x"):
        assert without_hadoop(Uri(text)) == Uri("s3://bucket/x")
    one = Uri("abfss://box@account/x")
    with pytest.raises(PipelineError, match=f"{one}: DuckDB reads folders and s3://"):
        without_hadoop(one)


def test_local_files_may_have_a_scheme(tmp_path: Path) -> None:
    for text in (f"file://{tmp_path}", f"file:{tmp_path}", str(tmp_path)):
        assert parse_location(text) == tmp_path
    assert parse_location("a:b/c") == Path("a:b/c")
    assert parse_location("hdfs:///a") == Uri("hdfs:///a")
    assert str(parse_location("s3a://bucket/") / "a") == "s3a://bucket/a"
    with pytest.raises(PipelineError, match="from the root"):
        parse_location("file://a/b")


def test_complete_results_are_moved_into_place(spark: SparkSession, store: Bucket) -> None:
    files, out, place = HadoopFiles(spark), Uri(f"{store.uri}/out"), store.folder / "out"
    with pytest.raises(ZeroDivisionError), uri_output_folder(files, out) as folder:
        (folder / "report.html").write_text(str(1 / 0), "utf-8")
    assert _names(store.folder) == set()
    for text in ("first", "second"):
        with uri_output_folder(files, out) as folder:
            (folder / "report.html").write_text(text, "utf-8")
            assert not place.exists() or (place / "report.html").read_text() == "first"
        assert (place / "report.html").read_text() == text
        assert _names(place) == {"report.html", "_SUCCESS"}
        assert _names(store.folder) == {"out"}


@pytest.mark.parametrize("failing", [1, 2])
def test_former_results_come_back_if_a_move_fails(
    spark: SparkSession, store: Bucket, failing: int
) -> None:
    files, out, place = HadoopFiles(spark), Uri(f"{store.uri}/out"), store.folder / "out"
    with uri_output_folder(files, out) as folder:
        (folder / "report.html").write_text("earlier", "utf-8")
    rename, calls = files.rename, []

    def fail(text: str, to: str) -> None:
        calls.append(text)
        if len(calls) == failing:
            raise StoreError(f"{text}: no")
        rename(text, to)

    with (
        patch.object(files, "rename", fail),
        pytest.raises(OutputError, match=rf"--out {out}: .*: no"),
        uri_output_folder(files, out) as folder,
    ):
        (folder / "report.html").write_text("later", "utf-8")
    assert (place / "report.html").read_text() == "earlier"
    assert _names(place) == {"report.html", "_SUCCESS"}
    assert _names(store.folder) == {"out"}


def test_occupied_place_for_results_is_refused(spark: SparkSession, store: Bucket) -> None:
    files, out = HadoopFiles(spark), Uri(f"{store.uri}/out")
    check_uri_output(files, out, [f"{store.uri}/output"], False)
    for one in (f"{store.uri}/out", f"{store.uri}/out/run", store.uri):
        with pytest.raises(OutputError, match=f"the trace {one} overlap"):
            check_uri_output(files, out, [one], True)
    with pytest.raises(OutputError, match="whole store"):
        check_uri_output(files, Uri("s3a://bucket/"), [], True)
    (store.folder / "out").mkdir()
    check_uri_output(files, out, [], False)
    (store.folder / "out" / "_SUCCESS").touch()
    with pytest.raises(OutputError, match="has results already; allow --overwrite"):
        check_uri_output(files, out, [], False)
    check_uri_output(files, out, [], True)
    (store.folder / "out" / "notes").touch()
    with pytest.raises(OutputError, match="holds 'notes', which is no result"):
        check_uri_output(files, out, [], True)
    with pytest.raises(OutputError, match="is a file"):
        check_uri_output(files, out / "notes", [], True)
    with (
        pytest.raises(OutputError, match="No FileSystem"),
        uri_output_folder(files, Uri("foo://a/b")),
    ):
        pytest.fail("there is no folder to write to")


def test_session_of_connect_takes_no_uri() -> None:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(SessionError, match="a Spark Connect server lists and moves no files"):
        HadoopFiles(session)


@pytest.mark.exhaustive
def test_command_through_connect_takes_no_uri(
    connect: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["waits", "s3a://bucket/runs", "--master", connect]) == 2
    [line] = without_clients_lines(capfd.readouterr().err).splitlines()
    assert "a Spark Connect server lists and moves no files" in line
