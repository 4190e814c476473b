"""The command itself: its help, its version, and its errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from purgatory.cli.main import COMMANDS
from tests.processes.cli.conftest import RunCommand

ROOT = Path(__file__).parents[3]


def test_version_is_that_of_the_distribution(run_command: RunCommand) -> None:
    ran = run_command("--version")
    assert (ran.status, ran.out) == (0, f"purgatory {version('kafka-purgatory')}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_is_listed(run_command: RunCommand, name: str) -> None:
    assert re.search(rf"^\W*{name} ", run_command("--help").out, re.MULTILINE)
    ran = run_command(name, "--help")
    assert ran.status == 0
    assert f"Usage: purgatory {name}" in ran.out
    assert "\x1b" not in ran.out


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_whole_at_80_columns_and_in_plain_words(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = run_command(*([name] if name else []), "--help").out
    assert max(map(len, out.splitlines())) <= 80
    assert not re.search(r"<(bool|int|str|float|path|list)|…|``|\(None\)", out, re.IGNORECASE)
    if not name:
        names = re.findall(r"^  ([a-z]+)  ", out.partition("\n\nTest Kafka")[2], re.MULTILINE)
        assert names == list(COMMANDS)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("purgatory clu", "cluster"),
        ("purgatory fault sta", "stall-follower"),
        ("purgatory audit --exp", "--expect"),
    ],
)
def test_a_shell_completes_commands_and_options(words: str, expected: str) -> None:
    environment = {
        "_PURGATORY_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    ran = subprocess.run(
        [sys.executable, "-c", "from purgatory.cli import run; run()"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert expected in re.split(r"[,\n]", ran.stdout), ran


@pytest.mark.slow
def test_command_without_arguments_prints_first_steps(
    run_command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = run_command()
    assert told.status == 0
    assert len(told.out.splitlines()) == 6
    steps = re.findall(r"^  purgatory (.+?)  ", told.out, re.MULTILINE)
    assert len(steps) == 4
    for step in steps:
        arguments = step.split()
        if arguments[0] == "cluster":  # runs until it is stopped
            arguments.append("--help")
        elif arguments[0] == "waits":
            arguments += ["--engine", "duckdb"]
        ran = run_command(*arguments)
        assert ran.status == 0, f"{step}: {ran.err}"


_LONG = "x" * 300
"""No file system takes it as a name."""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["whel"], "purgatory: No such command 'whel'. Did you mean 'wheel'?"),
        (["--nope"], "purgatory: No such option '--nope'"),
        (["wheel", "--nope"], "purgatory wheel: No such option '--nope'"),
        (["wheel", "4"], "purgatory wheel: Got unexpected extra argument"),
        (["waits", _LONG, "--engine", "duckdb"], f"purgatory waits: {_LONG}: can't be read"),
        (
            ["waits", ".", "--report", _LONG],
            f"purgatory waits: Invalid value for --report: {_LONG}",
        ),
        (["view", _LONG], f"purgatory view: {_LONG}"),
        (["cluster", "--trace", _LONG], f"purgatory cluster: --trace {_LONG}: cannot be made"),
    ],
)
def test_mistake_is_one_line_with_status_2(
    run_command: RunCommand, arguments: list[str], expected: str
) -> None:
    ran = run_command(*arguments)
    assert ran.status == 2
    assert ran.out == ""
    assert ran.err.startswith(expected)
    assert ran.err.count("\n") == 1


def run_without(modules: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``purgatory`` in a process in which ``modules`` cannot be imported."""
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({modules!r}))\n"
        f"sys.argv = ['purgatory', *{list(arguments)!r}]\n"
        "from purgatory.cli import run\n"
        "run()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )


def test_missing_click_names_the_extra() -> None:
    ran = run_without(["click"], "wheel")
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr == (
        "purgatory: the command line needs click: pip install 'kafka-purgatory[cli]'; "
        "purgatory doctor does without it\n"
    )


def test_doctor_runs_without_click() -> None:
    ran = run_without(["click", "rich", "pydantic"], "doctor")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "native core" in ran.stdout and "extra cli" in ran.stdout


def test_missing_rich_names_the_extra_of_the_wheel() -> None:
    ran = run_without(["rich.console"], "wheel")
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    assert "pip install 'kafka-purgatory[cli]'" in ran.stderr


def test_audit_command_needs_no_pydantic() -> None:
    ran = run_without(["pydantic"], "audit", "nowhere", "--engine", "duckdb", "--master", "local")
    assert ran.stderr.startswith("purgatory audit: nowhere: there is no such folder")


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("pydantic", ["simulate", "steady"], "simulation"),
        ("pydantic", ["scenarios"], "simulation"),
        ("pyarrow", ["simulate", "steady"], "simulation"),
        ("pyspark", ["analyze", "nowhere", "--out", "nowhere", "--engine", "spark"], "spark"),
        ("duckdb", ["waits", "nowhere", "--engine", "duckdb"], "analysis"),
        ("duckdb", ["audit", "nowhere", "--engine", "duckdb"], "analysis"),
        ("pymysqlreplication", ["capture", "--from=mysql://u:p@h", "--bootstrap=h:1"], "live"),
        ("pyspark", ["waits", "nowhere", "--engine", "spark"], "spark"),
    ],
)
def test_a_missing_extra_is_named(module: str, arguments: list[str], extra: str) -> None:
    ran = run_without([module], *arguments)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.startswith(f"purgatory {arguments[0]} needs the {extra} extra")
    assert f"pip install 'kafka-purgatory[{extra}]'" in ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze", "nowhere", "--out", "nowhere", "--engine", "duckdb"),
        ("waits", "nowhere", "--report", "page.html", "--engine", "duckdb"),
    ],
)
def test_a_missing_engine_is_named(
    arguments: tuple[str, ...],
) -> None:
    ran = run_without(["duckdb"], *arguments)
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert "pip install 'kafka-purgatory[analysis]'" in ran.stderr


def test_both_missing_extras_of_a_sweep_are_named() -> None:
    ran = run_without(["pyspark"], "sweep", "nowhere.toml", "--out", "nowhere")
    assert ran.returncode == 2
    assert ran.stderr.startswith("purgatory sweep needs the simulation and the spark extra (")
    assert "pip install 'kafka-purgatory[simulation,spark]'" in ran.stderr


def test_both_extras_are_named_without_any_engine() -> None:
    ran = run_without(["pyspark", "duckdb"], "audit", "nowhere")
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert "[spark]', or, for DuckDB and without Java, 'kafka-purgatory[analysis]'" in ran.stderr


def test_changes_are_applied_without_pyspark() -> None:
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "import purgatory.cdc.apply.local_engine\n"
        "from purgatory.cli.apply_command import _available_engine\n"
        "print(_available_engine('local[2]'))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (ran.stdout, ran.returncode) == ("local\n", 0), ran.stderr
    assert "PySpark is missing" in ran.stderr


def test_missing_module_outside_the_extras_is_a_defect() -> None:
    ran = run_without(["timer.system_timer"], "wheel")
    assert ran.returncode == 1
    assert "ModuleNotFoundError" in ran.stderr


def test_python_m_runs_the_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "purgatory", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stdout == f"purgatory {version('kafka-purgatory')}\n"


def test_status_after_ctrl_c_is_130_at_any_moment(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text("""
import purgatory.cli.main as module
from purgatory.cli import run

def main():
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        return 130

module.main = main
run()
""")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-m", "interrupted"]
    assert subprocess.run(command, env=environment, check=False).returncode == 130


@pytest.mark.parametrize(
    ("arguments", "buffered"),
    [([], True), (["--help"], False), (["wheel", "--help"], True), (["doctor"], False)],
    ids=str,
)
def test_closed_pipe_ends_the_command_quietly(arguments: list[str], buffered: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as broken:
        ran = subprocess.run(
            [sys.executable, "-m", "purgatory", *arguments],
            stdout=broken,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"},
            timeout=120,
        )
    assert (ran.returncode, ran.stderr) == (1, "")
