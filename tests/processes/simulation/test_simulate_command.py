"""`purgatory simulate` from outside: what it prints, where, and how it says no."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from purgatory.trace.trace_writer import TableWriter
from tests.processes.cli.conftest import RunCommand

ROOT = Path(__file__).parents[3]

SMALL = """
name = "small"
duration_ms = 300

[[producers]]
group = "orders"
rate = 100.0

[[consumers]]
group = "readers"

[[faults]]
kind = "stall_follower"
broker = 1
at_ms = 100
duration_ms = 50
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    """The path of a scenario of 300 ms."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "purgatory", "simulate", *arguments]


# Output.


def test_simulate_prints_tables_and_path_of_the_trace(
    small: str, tmp_path: Path, run_command: RunCommand
) -> None:
    ran = run_command("simulate", small, "--trace", str(tmp_path / "trace"))
    assert ran.status == 0
    assert "small, seed 1: 0.3" in ran.out
    for title in ("Purgatories (waits in ms)", "Producers (records)", "Consumers"):
        assert title in ran.out
    for column in ("operations", "at once", "by an event", "expired", "p50", "p95", "p99", "max"):
        assert column in ran.out
    for column in ("acknowledged", "failed", "duplicates", "reorderings", "lost"):
        assert column in ran.out
    assert ran.out.splitlines()[-1] == f"trace: {tmp_path / 'trace'}"


def test_json_is_one_document_on_standard_output(small: str, run_command: RunCommand) -> None:
    ran = run_command("simulate", small, "--json", "--seed", "5")
    assert ran.status == 0
    summary = json.loads(ran.out)
    assert (summary["scenario"], summary["seed"]) == ("small", 5)
    assert summary["producers"][0]["acknowledged"] == summary["producers"][0]["records"] > 0


def test_log_goes_to_standard_error_as_text_or_json(small: str, run_command: RunCommand) -> None:
    for_people = run_command("simulate", small).err
    assert re.search(r"\[info +\] stall_follower +at_ms=100\.0 broker=1", for_people)
    for_machines = run_command("simulate", small, "--log-format", "json").err
    lines = [json.loads(line) for line in for_machines.splitlines()]
    # Other tests' threads may log meanwhile: filter.
    (line,) = [line for line in lines if line["event"] == "stall_follower"]
    assert (line["event"], line["level"], line["at_ms"]) == ("stall_follower", "info", 100.0)
    assert run_command("simulate", small, "--quiet").err == ""


def test_a_duration_and_a_seed_replace_the_scenarios(small: str, run_command: RunCommand) -> None:
    ran = run_command("simulate", small, "--json", "--duration", "700ms", "--seed", "9")
    assert ran.status == 0
    assert json.loads(ran.out)["virtual_ms"] >= 700


def test_a_progress_bar_is_shown_on_a_terminal_alone(tmp_path: Path) -> None:
    # Long enough that the bar is drawn in between; it is wiped at the end.
    scenario = tmp_path / "long.toml"
    scenario.write_text(SMALL.replace("300", "2000").replace("100.0", "500.0"))
    main_end, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command(str(scenario)), stdout=subprocess.PIPE, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)
        shown = b"".join(_chunks(main_end))
        assert process.stdout is not None
        printed = process.stdout.read()
    assert process.returncode == 0
    assert b"records" in shown and b"%" in shown
    assert b"Purgatories" in printed and b"\x1b" not in printed


def _chunks(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(descriptor, 65_536)
        except OSError:  # what Linux says when the other end is closed
            chunk = b""
        if not chunk:
            os.close(descriptor)
            return
        yield chunk


# How it says no.


def test_nonempty_folder_is_kept_without_overwrite(
    small: str, tmp_path: Path, run_command: RunCommand
) -> None:
    trace = tmp_path / "trace"
    assert run_command("simulate", small, "--trace", str(trace), "--seed", "1").status == 0
    refused = run_command("simulate", small, "--trace", str(trace), "--seed", "2", "--quiet")
    assert refused.status == 2
    assert f"{trace}: is not empty" in refused.err and "--overwrite" in refused.err
    assert json.loads((trace / "run.json").read_text())["seed"] == 1

    allowed = ("--trace", str(trace), "--seed", "2", "--overwrite")
    assert run_command("simulate", small, *allowed).status == 0
    assert json.loads((trace / "run.json").read_text())["seed"] == 2


def test_folder_without_a_trace_is_never_overwritten(
    small: str, tmp_path: Path, run_command: RunCommand
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    ran = run_command("simulate", small, "--trace", str(tmp_path / "home"), "--overwrite")
    assert ran.status == 2
    assert "is no trace" in ran.err and "thesis.tex" in ran.err
    assert (tmp_path / "home" / "thesis.tex").read_text() == "years of work"


def test_file_at_the_path_of_the_trace_is_an_error(
    small: str, tmp_path: Path, run_command: RunCommand
) -> None:
    (tmp_path / "trace").write_text("")
    ran = run_command("simulate", small, "--trace", str(tmp_path / "trace"))
    assert ran.status == 2 and "is a file" in ran.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["stedy"], 'did you mean "steady"?'),
        (["none.toml"], "none.toml: no such file"),
        (["steady", "--seed", "-1"], "'-1' is not a whole number from 0"),
        (["steady", "--seed", "many"], "'many'"),
        (["steady", "--duration", "0s"], "'0s' is too short"),
        (["steady", "--duration", "9"], "'9' is not a duration"),
        (["steady", "--log-format", "xml"], "xml"),
        ([], "Missing argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_input_ends_with_status_2_and_a_message(
    arguments: list[str], told: str, run_command: RunCommand
) -> None:
    ran = run_command("simulate", *arguments)
    assert ran.status == 2
    assert told in ran.err
    assert "Traceback" not in ran.err and ran.out == ""


def test_scenario_error_names_file_key_value_and_valid_values(
    tmp_path: Path, run_command: RunCommand
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(SMALL.replace("rate = 100.0", 'rate = "fast"\nack = 1'))
    ran = run_command("simulate", str(path))
    assert ran.status == 2
    first, second = ran.err.splitlines()
    assert first.startswith(f'{path}: producers[0].rate = "fast": must be a valid number')
    assert second.startswith(f"{path}: producers[0].ack = 1: there is no such key; did you mean")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--real-time"],
        ["--publish", "live", "--bootstrap", "127.0.0.1:1"],
        ["--client", "acks=1"],
        ["--metrics-port", "0"],
    ],
)
def test_former_option_is_refused_with_its_replacement(
    arguments: list[str], run_command: RunCommand
) -> None:
    ran = run_command("simulate", "steady", *arguments)
    assert ran.status == 2 and ran.out == ""
    assert f"{arguments[0]}" in ran.err and "are gone: use purgatory cluster" in ran.err
    assert ran.err.count("\n") == 1


def test_a_request_log_that_is_missing_is_an_error(tmp_path: Path, run_command: RunCommand) -> None:
    path = tmp_path / "log.toml"
    path.write_text(
        'name = "log"\n[[producers]]\ngroup = "g"\narrivals = { file = "a.csv", time = "t" }\n'
    )
    ran = run_command("simulate", str(path))
    assert ran.status == 2
    assert f"{tmp_path / 'a.csv'}: there is no such file" in ran.err


def test_a_trace_that_cannot_be_made_is_an_error(
    small: str, tmp_path: Path, run_command: RunCommand
) -> None:
    (tmp_path / "file").write_text("")
    ran = run_command("simulate", small, "--trace", str(tmp_path / "file" / "trace"))
    assert ran.status == 2
    assert f"{tmp_path / 'file' / 'trace'}: cannot be made: Not a directory" in ran.err


def test_full_disk_ends_the_run_and_leaves_an_incomplete_trace(
    small: str, tmp_path: Path, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TableWriter, "_write_group", fail)
    ran = run_command("simulate", small, "--quiet", "--trace", str(tmp_path / "trace"))
    assert ran.status == 1
    assert "the trace cannot be written" in ran.err and "No space left on device" in ran.err
    assert "Traceback" not in ran.err and ran.out == ""
    assert json.loads((tmp_path / "trace" / "run.json").read_text())["complete"] is False


# Interrupts.

ENDLESS = SMALL.replace("duration_ms = 300", "duration_ms = 100_000_000_000")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_an_interrupt_leaves_a_trace_that_is_marked_incomplete(
    number: signal.Signals, status: int, tmp_path: Path
) -> None:
    (tmp_path / "endless.toml").write_text(ENDLESS)
    with subprocess.Popen(
        command("endless.toml", "--trace", "trace"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = process.stderr.readline()  # of the fault at 100 ms: it is well under way
        assert "stall_follower" in said
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert "interrupted at" in err and "the trace in trace is marked incomplete" in err
    assert "Traceback" not in err and out == ""
    head = json.loads((tmp_path / "trace" / "run.json").read_text())
    assert (head["complete"], head["reason"]) == (False, "interrupted")
    # The files written up to then are complete.
    assert not list((tmp_path / "trace").rglob("*.part"))
    assert all(table["parts"] >= 1 for table in head["tables"].values())
    assert head["tables"]["sends"]["rows"] > 0
