"""The command line: its errors, in one line each."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from purgatory.cdc.capture import CaptureError, parse_source_address
from purgatory.cdc.capture.position import Position, parse_position
from purgatory.cli.exit_status import INVALID_CHANGE, INVALID_INPUT, TRANSIENT_FAILURE
from purgatory.cli.main import main
from tests.databases.cdc.capture.capturing import Capturing
from tests.databases.cdc.captured import in_source_order


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = INVALID_INPUT) -> str:
    """Run a capture that must not begin; return the one line that it prints."""
    assert main(["capture", *arguments]) == status
    out, err = capsys.readouterr()
    assert out == ""
    [line] = err.splitlines()
    assert line.startswith("purgatory capture: ")
    return line


def arguments(capturing: Capturing) -> list[str]:
    return [
        f"--from={capturing.mariadb.url}/{capturing.name}",
        f"--bootstrap={capturing.cluster.bootstrap_servers}",
        f"--topic={capturing.name}",
        "--once",
    ]


@contextmanager
def setting(capturing: Capturing, name: str, value: str) -> Iterator[None]:
    [(before,)] = capturing.mariadb.rows(f"SELECT @@GLOBAL.{name}")
    capturing.run(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        capturing.run(f"SET GLOBAL {name} = {before!r}")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_capture_prints_the_number_of_sent_records(
    capturing: Capturing, capsys: pytest.CaptureFixture[str]
) -> None:
    capturing.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    assert main(["capture", *arguments(capturing), "--snapshot", "--partitions=1"]) == 0
    # Two rows, and the positions around them.
    assert capsys.readouterr().out == f"5 records sent to {capturing.name}\n"
    assert [r.value["data"]["id"] for r in in_source_order(capturing.records())] == [1, 2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("binlog_format", "'MIXED'"),
        ("binlog_row_image", "'MINIMAL'"),
        ("binlog_row_metadata", "'MINIMAL'"),
        pytest.param("log_bin_compress", "1", marks=pytest.mark.mariadb),
    ],
)
def test_wrong_source_setting_is_named_with_a_valid_one(
    capturing: Capturing, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    with setting(capturing, name, value):
        line = said(capsys, *arguments(capturing))
    assert f"the source's setting {name} is " in line
    assert f"SET GLOBAL {name} = " in line


@pytest.mark.parametrize(
    "address",
    [
        "postgres://u:p@h:1/d",
        "mysql://h:1/d",
        "mysql://u:p@:1/d",
        "mysql://u:p@h:port/d",
        "mysql://u:p@h:1/d/e",
        "u:p@h",
    ],
)
def test_invalid_source_address_is_refused_without_its_password(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = said(capsys, f"--from={address}", "--bootstrap=127.0.0.1:1")
    assert "write mysql://USER:PASSWORD@HOST:PORT[/DATABASE]" in line
    assert ":p@" not in line


def test_an_address_may_have_any_password() -> None:
    address = parse_source_address("mysql://u%40x:p%2F%3A%25@h/d%20e")
    assert (address.user, address.password) == ("u@x", "p/:%")
    assert (address.port, address.database) == (3306, "d e")
    assert "p/:%" not in repr(address)


def test_wrong_password_is_one_line(
    capturing: Capturing, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"mysql://capture:wrong@127.0.0.1:{capturing.mariadb.port}"
    assert "Access denied" in said(capsys, f"--from={url}", "--bootstrap=127.0.0.1:1")


def test_unreachable_source_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    given = [f"--from=mysql://u:p@127.0.0.1:{port}", "--bootstrap=127.0.0.1:1"]
    line = said(capsys, *given, status=TRANSIENT_FAILURE)
    assert f"the source 127.0.0.1:{port} can't be reached" in line


def test_unreachable_cluster_is_one_line(
    capturing: Capturing, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("purgatory.cdc.capture.kafka._ADMIN_TIMEOUT_S", 0.5)
    given = [*arguments(capturing), f"--bootstrap=127.0.0.1:{free_port()}"]
    assert main(["capture", *given]) == TRANSIENT_FAILURE
    assert "can't be reached" in capsys.readouterr().err.splitlines()[-1]


def test_client_setting_without_a_value_is_one_line(
    capturing: Capturing, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "'acks': write NAME=VALUE" in said(capsys, *arguments(capturing), "--client=acks")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("no.such=1", 'No such configuration property: "no.such"'),
        ("batch.size=large", 'Invalid value for configuration property "batch.size"'),
        ("acks=1", "`acks` must be set to `all` when `enable.idempotence` is true"),
        ("linger.ms=5", "--client linger.ms: leave it out"),
    ],
)
def test_invalid_client_setting_is_one_line(
    capturing: Capturing, capsys: pytest.CaptureFixture[str], setting: str, told: str
) -> None:
    assert told in said(capsys, *arguments(capturing), f"--client={setting}")


def test_deleted_binlog_is_one_line(
    capturing: Capturing, capsys: pytest.CaptureFixture[str]
) -> None:
    capturing.run("CREATE TABLE t (id INT PRIMARY KEY)")
    capturing.capture()
    capturing.run("FLUSH BINARY LOGS")
    file = capturing.mariadb.binlog_end().file
    capturing.run("INSERT INTO t VALUES (1)")
    give_up_s = time.monotonic() + 60
    # The server keeps a file as long as it believes that a client reads it.
    while len(capturing.mariadb.rows("SHOW BINARY LOGS")) > 1 and time.monotonic() < give_up_s:
        capturing.run(f"PURGE BINARY LOGS TO '{file}'")
    line = said(capsys, *arguments(capturing))
    assert "can't be read from binlog." in line
    assert "Could not find first log file" in line


def test_positions_round_trip_and_are_ordered_over_files() -> None:
    positions = [Position("a.000009", 2**32 - 1), Position("a.000010", 4), Position("a.1000000", 4)]
    assert [parse_position(str(one)) for one in positions] == positions
    numbers = [one.number for one in positions]
    assert numbers == sorted(numbers)
    assert all(int(float(number)) == number for number in numbers)
    for bad in ("", "a.000001", "a.000001:x", "a:4", ":4"):
        with pytest.raises(CaptureError):
            parse_position(bad)


def test_the_address_may_come_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("PURGATORY_CAPTURE_FROM", f"mysql://u:p@127.0.0.1:{port}")
    line = said(capsys, "--bootstrap=127.0.0.1:1", status=TRANSIENT_FAILURE)
    assert f"the source 127.0.0.1:{port} can't be reached" in line


def test_row_refused_by_the_topic_is_a_bad_change(
    capturing: Capturing, capsys: pytest.CaptureFixture[str]
) -> None:
    capturing.run("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
    given = [*arguments(capturing), "--partitions=1", "--max-record-bytes=20000"]
    assert main(["capture", *given]) == 0
    capturing.run("INSERT INTO t VALUES (1, 'v')", "INSERT INTO t VALUES (2, REPEAT('v', 30000))")
    capsys.readouterr()
    line = said(capsys, *given, status=INVALID_CHANGE)
    assert '"pk.id":2' in line
    assert "raise max.message.bytes of topic" in line
    assert [r.value["data"]["id"] for r in in_source_order(capturing.records())] == [1]


def test_created_topic_accepts_rows_of_many_megabytes(capturing: Capturing) -> None:
    capturing.run("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
    capturing.capture()
    capturing.run("INSERT INTO t VALUES (1, REPEAT('v', 9 * 1024 * 1024))")
    capturing.capture()
    [record] = in_source_order(capturing.records())
    assert len(record.value["data"]["v"]) == 9 * 2**20
