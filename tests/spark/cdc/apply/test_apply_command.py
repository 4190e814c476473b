"""The command apply, over files, and its errors."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest

from purgatory.cdc.apply.files import file_topic
from purgatory.cli.exit_status import INVALID_INPUT, TRANSIENT_FAILURE
from purgatory.cli.main import main
from purgatory.pipeline.errors import SessionError
from tests.databases.cdc.change_log import (
    as_list,
    closing_target,
    quarantined,
    random_log,
    record,
    rows_of,
)
from tests.databases.cdc.postgres import Postgres


def lines_of(seed: int, number: int) -> list[bytes]:
    """A log as lines of a file."""
    return [(record.value or b"") + b"\n" for record in random_log(seed, number)[0]]


@pytest.mark.parametrize("by", ["row", "transaction"])
def test_grown_file_is_applied_from_the_targets_offset(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    lines = lines_of(5, 90)
    log = tmp_path / "log.jsonl"
    # The last line is being written.
    log.write_bytes(b"".join(lines[:60]) + lines[60][:40])
    assert main(["apply", str(log), "--to", url, "--atomicity", by]) == TRANSIENT_FAILURE
    said = capsys.readouterr()
    assert said.out == "60 applied, 0 quarantined\n"
    assert said.err == (
        f"purgatory apply: {log} ends in the middle of line 61, which is not applied; "
        "run it again when the rest is there\n"
    )
    log.write_bytes(b"".join(lines))
    assert main(["apply", str(log), "--to", url, "--atomicity", by]) == 0
    assert capsys.readouterr().out == "30 applied, 0 quarantined\n"
    assert main(["apply", str(log), "--to", url, "--atomicity", by]) == 0
    assert capsys.readouterr().out == "0 applied, 0 quarantined\n"
    with closing_target(url) as target:
        assert rows_of(target) == as_list(random_log(5, 90)[1])


def test_file_name_outside_utf_8_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Path(os.fsdecode(os.fsencode(tmp_path) + b"/log\xff.jsonl"))
    log.touch()
    assert main(["apply", str(log), "--to", f"sqlite:///{tmp_path}/copy.db"]) == INVALID_INPUT
    said = capsys.readouterr().err
    assert "log\\xff.jsonl': the path of a file must be UTF-8; rename it" in said


def test_damaged_compressed_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl.gz"
    log.write_bytes(gzip.compress(b"")[:10] + b"\xff" * 50)
    assert main(["apply", str(log), "--to", f"sqlite:///{tmp_path}/copy.db"]) == INVALID_INPUT
    said = capsys.readouterr().err
    assert said.startswith(f"purgatory apply: {log}: can't be read: Error -3 while decompressing")


def test_unfinished_transaction_is_reported_each_time(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(number: int, xid: int, **end: object) -> bytes:
        row = {"database": "shop", "table": "t", "type": "insert", "ts": 1, "data": {"id": number}}
        return (
            json.dumps({**row, "primary_key_columns": ["id"], "xid": xid, **end}).encode() + b"\n"
        )

    log = tmp_path / "log.jsonl"
    lines = [change(1, 1, commit=True), change(2, 2, xoffset=0), change(3, 2, xoffset=1)]
    log.write_bytes(b"".join(lines))
    for applied, waits in ((1, ", 2 pending"), (0, "")):
        assert (
            main(["apply", str(log), "--to", url, "--atomicity", "transaction"])
            == TRANSIENT_FAILURE
        )
        said = capsys.readouterr()
        assert said.out == f"{applied} applied, 0 quarantined{waits}\n"
        assert said.err == (
            f"purgatory apply: {log} ends in the middle of a transaction: 2 changes are not "
            "applied; run it again when the rest is there\n"
        )
    log.write_bytes(b"".join([*lines, change(4, 2, xoffset=2, commit=True)]))
    assert main(["apply", str(log), "--to", url, "--atomicity", "transaction"]) == 0
    assert capsys.readouterr().out == "3 applied, 0 quarantined\n"


def test_compressed_file_is_applied_without_its_bad_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl.gz"
    log.write_bytes(gzip.compress(b"\n".join([*lines_of(5, 3), b"oops", b'{"a": 1}'])))
    url = f"sqlite:///{tmp_path / 'target.db'}"
    assert main(["apply", str(log), "--to", url]) == 0
    assert capsys.readouterr().out == "3 applied, 2 quarantined\n"
    with closing_target(url) as target:
        assert quarantined(target) == [(6, "malformed"), (7, "malformed")]


def test_stop_at_a_bad_line_exits_with_1_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"oops\n")
    url = f"sqlite:///{tmp_path / 'target.db'}"
    assert main(["apply", str(log), "--to", url, "--strict"]) == 1
    place = rf"stopped at file:{re.escape(str(log))}#[0-9a-f]+, partition 0, offset 0: malformed"
    assert re.search(place, capsys.readouterr().err)


def test_trace_has_reads_effects_and_commits(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"".join(lines_of(5, 9)))
    url = f"sqlite:///{tmp_path / 'target.db'}"
    trace = tmp_path / "trace"
    assert main(["apply", str(log), "--to", url, "--audit-log", "--trace", str(trace)]) == 0
    read = {path.stem: path.read_text().splitlines() for path in trace.glob("*.jsonl")}
    assert {name: len(rows) for name, rows in read.items()} == {
        "reads": 9,
        "effects": 9,
        "commits": 1,
    }
    assert json.loads(read["commits"][0])["offset"] == 9
    assert {json.loads(row)["poll"] for row in read["reads"]} == {1}
    versions = [json.loads(row)["version"] for row in read["effects"]]
    assert versions == sorted(set(versions))


def test_tables_are_named_and_typed_by_a_file(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(lines_of(5, 1)[0])
    tables = tmp_path / "tables.toml"
    tables.write_text('["shop.orders"]\nname = "copy"\ncolumns = { amount = "varchar(9)" }\n')
    url = f"sqlite:///{tmp_path / 'target.db'}"
    assert main(["apply", str(log), "--to", url, "--tables", str(tables)]) == 0
    with closing_target(url) as target:
        [row] = rows_of(target, "copy")
        assert isinstance(row["amount"], str)


BAD_TABLES = {
    "[": "can't be read as TOML",
    "orders = 3": '["orders"]: must be a section',
    "[a]\nkey = 1": "key is none of name, primary_key, columns",
    "[a]\nname = 1": "name must be a string",
    '[a]\nprimary_key = "id"': "primary_key must be a list",
    "[a]\ncolumns = 1": "columns must be a table",
    '[a]\ncolumns = { n = "vector" }': "n is 'vector', not a MySQL type",
}


@pytest.mark.parametrize("text", BAD_TABLES)
def test_invalid_file_of_tables_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    tables = tmp_path / "tables.toml"
    tables.write_text(text)
    url = f"sqlite:///{tmp_path / 'target.db'}"
    assert main(["apply", "log", "--to", url, "--tables", str(tables)]) == 2
    err = capsys.readouterr().err
    assert BAD_TABLES[text] in err
    assert err.count("\n") == 1


TOPIC = ("--to", "sqlite:///x.db", "--bootstrap", "127.0.0.1:1", "--topic", "t")
BAD_ARGUMENTS = {
    ("log",): "--to",
    ("--to", "sqlite:///x.db"): "give either files, or --bootstrap and --topic",
    ("log", "--to", "sqlite:///x.db", "--topic", "t"): "give either files",
    ("--to", "sqlite:///x.db", "--topic", "t"): "belong together",
    (
        "log",
        "--to",
        "sqlite:///x.db",
        "--atomicity",
        "table",
    ): "'table' is not one of 'row', 'transaction'",
    ("log", "--to", "sqlite:///x.db", "--trace", "t"): "needs --audit-log",
    ("log", "--to", "sqlite:///x.db", "--client", "acks"): "'acks': write NAME=VALUE",
    (*TOPIC, "--client", "bootstrap.servers=x:1"): "give --bootstrap",
    (*TOPIC, "--client", "ssl.ca.location=no.pem"): "--client: ssl.ca.location='no.pem': there is",
    (*TOPIC, "--client", "sasl.jaas.config=x"): "give sasl.username and sasl.password",
    (*TOPIC, "--client", "foo=bar"): '--client: No such configuration property: "foo"',
    ("log", "--to", "mysql://here/x"): "mysql:... is no target",
    ("log", "--to", "sqlite://"): "sqlite:... is no target",
    ("log", "--to", "sqlite:////no/such/folder/x.db"): "can't be opened",
    ("no-such-log", "--to", "sqlite:///:memory:"): "no-such-log: can't be read",
}


def test_unreachable_target_is_a_transient_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", "log", "--to", "postgresql://nobody@127.0.0.1:1/x"]) == TRANSIENT_FAILURE
    err = capsys.readouterr().err
    assert "can't be reached" in err
    assert err.count("\n") == 1


def test_refusing_target_is_bad_input(
    postgres: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", "log", "--to", f"{postgres.url()}_that_is_not"]) == INVALID_INPUT
    assert '_that_is_not" does not exist' in capsys.readouterr().err


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS, ids=" ".join)
def test_invalid_arguments_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert main(["apply", *arguments]) == 2
    err = capsys.readouterr().err
    assert BAD_ARGUMENTS[arguments] in err
    assert err.count("\n") == 1


def test_schema_change_stops_until_it_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    stop = [{"do": "stop", "why": "DROP PARTITION takes rows away"}]
    records = [
        record(0, data={"id": 1}),
        record(1, type="table-alter", data=None, steps=stop),
        record(2, data={"id": 2}),
    ]
    log.write_bytes(b"".join((one.value or b"") + b"\n" for one in records))
    command = ["apply", str(log), "--to", f"sqlite:///{tmp_path / 'target.db'}"]
    for by in ("row", "row", "transaction"):
        assert main([*command, "--atomicity", by]) == 1
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        assert f"offset 1: not applied: shop.orders: {stop[0]['why']}" in told
        assert told.endswith(f"and continue with --skip-ddl {file_topic(log)}:0:1)\n")
    assert main([*command, "--skip-ddl", f"{file_topic(log)}:0"]) == 2
    assert "write TOPIC:PARTITION:OFFSET" in capsys.readouterr().err
    assert main([*command, "--skip-ddl", f"{file_topic(log)}:0:1"]) == 0
    assert capsys.readouterr().out == "1 applied, 1 quarantined\n"
    with closing_target(command[-1]) as target:
        assert [row["id"] for row in rows_of(target)] == [1, 2]


@pytest.mark.parametrize("by", ["row", "transaction"])
def test_file_of_several_partitions_is_one_line_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    log = tmp_path / "log.jsonl"
    drop = [{"do": "drop-column", "name": "n"}]
    copy = {"type": "table-alter", "data": None, "steps": drop, "position": "binlog.000001:9"}
    records = [
        # A row may have a column of this name.
        record(0, data={"id": 1, "partitions": 3}),
        *(record(1 + one, **copy, partition=one, partitions=3) for one in range(3)),
    ]
    log.write_bytes(b"".join((one.value or b"") + b"\n" for one in records))
    for _ in range(2):
        url = f"sqlite:///{tmp_path / 'target.db'}"
        assert main(["apply", str(log), "--to", url, "--atomicity", by]) == INVALID_INPUT
        told = capsys.readouterr().err
        assert told.startswith(f"purgatory apply: {log}, line 2: the topic has 3 partitions")
        assert told.count("\n") == 1


def test_remote_master_selects_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **_settings: object) -> None:
        raise SessionError("no Java")

    def started(master: str, **_: object) -> None:
        raise SessionError(f"a session on {master}")

    module = "purgatory.pipeline.engines.spark"
    monkeypatch.setattr(f"{module}.java.find_java_home", refuse)
    monkeypatch.setattr(f"{module}.session.spark_session", started)
    to = f"sqlite:///{tmp_path}/copy.db"
    command = ["apply", "--bootstrap", "127.0.0.1:1", "--topic", "changes", "--to", to]
    assert main([*command, "--once", "--master", "spark://master:7077"]) == INVALID_INPUT
    assert capsys.readouterr().err == "purgatory apply: a session on spark://master:7077\n"
