"""Traces and results in S3 by DuckDB, without Java: against moto's server, in its own process."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from urllib.request import Request, urlopen

import boto3
import pyarrow.parquet as pq
import pytest

import purgatory
from purgatory.cli.main import main
from purgatory.pipeline.engines import engine as which_engine
from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.s3_files import S3Files
from purgatory.pipeline.ingest.stores import ListedPath, StoreError
from tests.spark.pipeline.conftest import WriteTrace
from tests.spark.pipeline.test_quarantine import OPERATION

Signal = signal.Signals


# A server that lists ten objects a page, so that a few are several pages.
_SERVER = """
import sys
from moto.s3.models import S3Backend
from moto.server import main
listed = S3Backend.list_objects_v2
def listed_in_pages(self, **words):
    return listed(self, **words | {"max_keys": min(words["max_keys"], 10)})
S3Backend.list_objects_v2 = listed_in_pages
main(sys.argv[1:])
"""


class Store:
    """A server of S3 with one bucket, and a client that has no code of ours."""

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self.process, self.address = process, address
        self._client: Any = boto3.client("s3", endpoint_url=address)

    def begin(self) -> None:
        """Forget everything but one empty bucket."""
        urlopen(Request(f"{self.address}/moto-api/reset", method="POST")).close()
        self._client.create_bucket(Bucket="bucket")

    def require_credentials(self, wanted: bool) -> None:
        """Have the server refuse each request without a known signature."""
        allowed = b"0" if wanted else b"inf"
        kind = {"Content-Type": "text/plain"}
        place = f"{self.address}/moto-api/reset-auth"
        urlopen(Request(place, allowed, kind, method="POST")).close()

    def put(self, key: str, content: bytes = b"") -> None:
        """Make an object."""
        self._client.put_object(Bucket="bucket", Key=key, Body=content)

    def put_folder(self, folder: Path, key: str) -> str:
        """Make an object of each file in a folder; gives the URI of all."""
        for file in folder.rglob("*"):
            if file.is_file():
                self.put(f"{key}/{file.relative_to(folder).as_posix()}", file.read_bytes())
        return f"s3://bucket/{key}"

    def names(self, prefix: str = "") -> list[str]:
        """The names of all objects but the empty marks of folders."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket="bucket", Prefix=prefix
        )
        found = [one["Key"] for page in pages for one in page.get("Contents", ())]
        return [key for key in found if not key.endswith("/")]

    def get(self, key: str) -> bytes:
        """The content of an object."""
        content: bytes = self._client.get_object(Bucket="bucket", Key=key)["Body"].read()
        return content

    def tables(self, prefix: str) -> dict[str, list[dict[str, Any]]]:
        """The tables of results below a prefix."""
        return {
            key.split("/")[-2]: pq.read_table(io.BytesIO(self.get(key))).to_pylist()
            for key in self.names(prefix)
            if key.endswith(".parquet")
        }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The one server of these tests, which this process reaches by the variables of AWS."""
    log = tmp_path_factory.mktemp("moto") / "log"
    with (
        pytest.MonkeyPatch.context() as patch,
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-u", "-c", _SERVER, "-H", "127.0.0.1", "-p", "0"],
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            while "Running on" not in (said := log.read_text("utf-8")) or said[-1] != "\n":
                assert process.poll() is None, said
                time.sleep(0.02)
            address = next(word for word in said.split() if word.startswith("http://"))
            patch.setenv("AWS_ENDPOINT_URL", address)
            patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
            patch.setenv("AWS_REGION", "us-east-1")
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            yield Store(process, address)
        finally:
            process.kill()


@pytest.fixture
def store(server: Store) -> Store:
    """The server with an empty bucket."""
    server.begin()
    return server


@pytest.fixture
def trace(write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path) -> Path:
    """A small trace on this machine."""
    return write_trace(tmp_path / "trace", hand_operations, parts=2)


def _of_folder(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {one.name: pq.read_table(one).to_pylist() for one in folder.iterdir() if one.is_dir()}


@pytest.mark.slow
def test_commands_print_the_same_for_s3_as_for_a_folder(
    store: Store,
    slow_follower_trace: Path,
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = tmp_path / "runs [1] %20"
    runs.mkdir()
    (runs / "ü ?#+&").symlink_to(slow_follower_trace)
    (runs / "second").symlink_to(trace)
    for name in ("ü ?#+&", "second"):
        store.put_folder((runs / name).resolve(), f"{runs.name}/{name}")
    store.put(f"{runs.name}/")  # as some tools mark a folder
    for job in ("audit", "analyze"):
        said = []
        for uri, out in (
            (str(runs), tmp_path / job),
            (f"s3a://bucket/{runs.name}", f"s3://bucket/results/{job}"),
        ):
            if job == "analyze" and isinstance(out, Path):
                continue  # the page of a folder is tested elsewhere; its tables are the same
            roots = [uri] if "://" in uri else [str(runs / "ü ?#+&"), str(runs / "second")]
            # The second run has no sends.
            empty = ["--allow-empty"] if job == "audit" else []
            assert main([job, *roots, "--engine", "duckdb", "--out", str(out), *empty]) == 0
            printed = capsys.readouterr()
            assert printed.err == ""
            said.append(printed.out.replace(str(out), "OUT"))
        if job != "analyze":
            assert said[0] == said[1]
            assert store.tables(f"results/{job}/") == _of_folder(tmp_path / job)
        assert f"results/{job}/_SUCCESS" in store.names("results/")
    assert b"</html>" in store.get("results/analyze/report.html")
    folders = {row["folder"] for row in store.tables("results/analyze/")["runs"]}
    assert folders == {f"s3://bucket/{runs.name}/{name}" for name in ("ü ?#+&", "second")}
    assert not [key for key in store.names() if "/." in key]  # nothing that was in the making


def test_quarantine_and_strict_error_name_the_uri(store: Store, trace: Path) -> None:
    (trace / "operations" / "part-00001.parquet").write_bytes(b"torn")
    (trace / "reads" / "part-00001.parquet.part").touch()
    store.put_folder(trace, "a/run")
    wrong = json.dumps({**OPERATION, "start_us": "soon"})
    lines = gzip.compress(f"{json.dumps(OPERATION)}\n{wrong}\n".encode())
    store.put("a/lines of json/operations.jsonl.gz", lines)
    store.put("a/lines of json/sends.jsonl.gz", lines[:-9])
    out = "s3://bucket/out"
    assert main(["analyze", "s3://bucket/a/", "--engine", "duckdb", "--out", out]) == 0
    told = {(row["file"], row["line"], row["reason"]) for row in store.tables("out/")["quarantine"]}
    assert told == {
        ("s3://bucket/a/run/operations/part-00001.parquet", None, "torn file"),
        ("s3://bucket/a/run/reads/part-00001.parquet.part", None, "unfinished file"),
        ("s3://bucket/a/lines of json/operations.jsonl.gz", 2, "wrong type"),
        ("s3://bucket/a/lines of json/sends.jsonl.gz", None, "torn file"),
    }
    with pytest.raises(TraceError, match=r"s3://bucket/a/.*: can't be read"):
        purgatory.audit("s3://bucket/a", strict=True)


@pytest.mark.slow
def test_audit_function_reads_s3(store: Store, slow_follower_trace: Path) -> None:
    uri = store.put_folder(slow_follower_trace, "run")
    found = purgatory.audit(uri)
    assert list(found) == list(purgatory.audit(slow_follower_trace))
    assert found.count("duplicate") > 0
    assert purgatory.audit([uri], expect=["once"]).violations
    both = "both have the run id"
    with pytest.raises(TraceError, match=both):
        purgatory.audit([uri, slow_follower_trace])


@pytest.mark.slow
def test_listing_follows_further_pages(
    store: Store, trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store.put_folder(trace, "runs/z")
    for number in range(11):
        store.put(f"runs/{number}")
    monkeypatch.setattr(which_engine, "_lacking", lambda: "Spark finds no Java 17 or later")
    assert main(["waits", "s3://bucket/runs"]) == 0
    printed = capsys.readouterr()
    assert "by-hand-1" in printed.out
    assert "so DuckDB does it" in printed.err


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("variables", "words", "message"),
    [
        ({}, ["s3://other/runs"], "s3://other/runs: there is no bucket 'other'"),
        ({}, ["s3://bucket/runs"], "s3://bucket/runs: there is no such folder"),
        ({}, ["s3://bucket/run/run.json"], "s3://bucket/run/run.json: is a file"),
        ({}, ["s3:///runs"], "s3:///runs: names no bucket"),
        ({}, ["gs://bucket/x"], "gs://bucket/x: DuckDB reads folders and s3://; "),
        ({}, ["{trace}", "--out", "hdfs://host/x"], "hdfs://host/x: DuckDB reads folders and s3"),
        ({}, ["{trace}", "--out", "s3://other/x"], "--out s3://other/x: .*no bucket 'other'"),
        ({}, ["{trace}", "--out", "s3://bucket"], "--out s3://bucket: is a whole store"),
        ({}, ["s3://bucket/run", "--out", "s3a://bucket/run/x"], "overlap; name another folder"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, ["s3://bucket/run"], "Failed to connect"),
        ({"AWS_ENDPOINT_URL": "host:1"}, ["s3://bucket/run"], "AWS_ENDPOINT_URL is 'host:1'"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, ["s3://bucket/run"], "ACCESS_DENIED"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, ["{trace}", "--out", "s3://bucket/x"], "ACCESS_DENIED"),
    ],
)
def test_store_error_is_one_line(
    store: Store,
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    words: list[str],
    message: str,
) -> None:
    store.put_folder(trace, "run")
    store.require_credentials("AWS_ACCESS_KEY_ID" in variables)
    try:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        given = [word.format(trace=trace) for word in words]
        assert main(["waits", *given, "--engine", "duckdb"]) == 2
    finally:
        store.require_credentials(False)
    printed = capsys.readouterr()
    [line] = printed.err.splitlines()
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(line)
    assert printed.out == ""


_WHOLE = [
    f"results/waits/{name}"
    for name in ("_SUCCESS", "slowest/part-00000.parquet", "waits/part-00000.parquet")
]


def _waits(trace: Path, *words: str) -> list[str]:
    return ["waits", str(trace), "--engine", "duckdb", "--out", "s3://bucket/results/waits", *words]


def test_results_are_replaced_if_allowed(
    store: Store, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("_SUCCESS", "waits/part-00000.parquet", "quarantine/part-00000.parquet"):
        store.put(f"results/waits/{name}", b"earlier")
    assert main(_waits(trace)) == 2
    assert "has results already; allow --overwrite" in capsys.readouterr().err
    assert main(_waits(trace, "--overwrite")) == 0
    assert store.names() == _WHOLE
    assert len(store.tables("results/")["waits"]) > 5
    store.put("results/waits/notes")
    assert main(_waits(trace, "--overwrite")) == 2
    assert "holds 'notes', which is no result" in capsys.readouterr().err


class _FailingCopies:
    """Arrow's file system, whose copies end in an error at one of them."""

    def __init__(self, files: S3Files, failing: int) -> None:
        self._inner, self._left = files._files, failing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def copy_file(self, source: str, target: str) -> None:
        self._left -= 1
        if self._left == 0:
            raise OSError("no\nmore")
        self._inner.copy_file(source, target)


@pytest.mark.parametrize("failing", [1, 2, 4])  # of two tables: the first ones go aside
@pytest.mark.parametrize("earlier", [True, False])
def test_former_results_come_back_if_a_move_fails(
    store: Store,
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failing: int,
    earlier: bool,
) -> None:
    if earlier:
        for name in _WHOLE:
            store.put(name, b"earlier")
    elif failing == 4:
        return  # there are two to move
    before = store.names()
    connected = S3Files.__init__

    def fail(self: S3Files) -> None:
        connected(self)
        self._files = _FailingCopies(self, failing)

    monkeypatch.setattr(S3Files, "__init__", fail)
    assert main(_waits(trace, "--overwrite")) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("purgatory waits: --out s3://bucket/results/waits: s3://")
    assert line.endswith(": no")
    assert store.names() == before
    tables = [key for key in before if key.endswith(".parquet")]
    assert all(store.get(key) == b"earlier" for key in tables)


_KILLED = """
import os, sys
from purgatory.pipeline.ingest.s3_files import S3Files
from purgatory.cli.main import main
rename, left = S3Files.rename, [int(sys.argv[1])]
def killed(self, text, to):
    left[0] -= 1
    if not left[0]:
        os._exit(9)
    rename(self, text, to)
S3Files.rename = killed
main(sys.argv[2:])
"""


def test_kill_between_the_steps_leaves_no_mark_of_completeness(store: Store, trace: Path) -> None:
    for name in _WHOLE:
        store.put(name, b"earlier")
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, "2", *_waits(trace, "--overwrite")], check=False
    )
    assert killed.returncode == 9
    left = store.names()
    assert not [key for key in left if key.startswith("results/waits/")]
    aside = [key.partition("/replaced/")[2] for key in left if "/replaced/" in key]
    assert [f"results/waits/{key}" for key in aside] == _WHOLE[1:]  # all but _SUCCESS
    assert main(_waits(trace)) == 0
    assert [key for key in store.names() if "/." not in key] == _WHOLE


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("number", "status", "said"),
    [(Signal.SIGINT, 130, "interrupted"), (Signal.SIGTERM, 143, "terminated")],
)
def test_signal_while_files_are_copied_leaves_no_files(
    store: Store,
    write_trace: WriteTrace,
    hand_operations: list[Any],
    tmp_path: Path,
    number: Signal,
    status: int,
    said: str,
) -> None:
    trace = write_trace(tmp_path / "many", hand_operations * 10, parts=40)
    uri, temporary = store.put_folder(trace, "run"), tmp_path / "temporary"
    temporary.mkdir()
    before = store.names()
    command = ["waits", uri, "--engine", "duckdb", "--out", "s3://bucket/results/waits"]
    with subprocess.Popen(
        [sys.executable, "-m", "purgatory", *command],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            while not list(temporary.glob("purgatory-copies-*")):
                assert process.poll() is None
                time.sleep(0.005)
            store.process.send_signal(signal.SIGSTOP)  # it waits for the server now
            process.send_signal(number)
            time.sleep(0.1)
        finally:
            store.process.send_signal(signal.SIGCONT)
        printed, errors = process.communicate(timeout=100)
    told = f"purgatory waits: {said}; nothing was written\n"
    assert (process.returncode, printed, errors) == (status, "", told)
    assert list(temporary.iterdir()) == []
    assert store.names() == before


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("threads", ["trace", "copy"])
def test_signal_while_a_thread_starts_leaves_no_thread_or_files(
    store: Store,
    write_trace: WriteTrace,
    hand_operations: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    threads: str,
) -> None:
    uri = store.put_folder(write_trace(tmp_path / "many", hand_operations, parts=8), "run")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    start, opened = threading.Thread.start, ListedPath.open
    left: list[threading.Thread] = []

    def struck(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith(threads):
            left.append(thread)
            signal.raise_signal(Signal.SIGINT)

    def open_slowly(path: ListedPath, *mode: Any) -> IO[bytes]:
        time.sleep(0.2)
        return opened(path, *mode)

    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(threading.Thread, "start", struck)
    monkeypatch.setattr(ListedPath, "open", open_slowly)
    assert main(["waits", uri, "--engine", "duckdb", "--out", "s3://bucket/results"]) == 130
    assert left and not any(thread.is_alive() for thread in left)
    assert capsys.readouterr().err == "purgatory waits: interrupted; nothing was written\n"
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_unreachable_store_is_reported_by_the_listing(store: Store) -> None:
    with pytest.raises(StoreError, match=r"s3://other/x: .*NO_SUCH_BUCKET"):
        list(S3Files().files_below("s3://other/x"))
