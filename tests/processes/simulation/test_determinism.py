"""One seed gives one trace, byte for byte: in this process, and in others."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.simulation.running import run_scenario

ROOT = Path(__file__).parents[3]

# As much as goes into one second: every kind of client, sampler, fault and partitioner.
EVERYTHING = """
name = "everything"
duration_ms = 1000
seed = 11

[cluster]
session_timeout_ms = 100
replica_lag_time_max_ms = 200

[topic]
partitions = 4

[followers]
fetch_interval_ms = { p50 = 1.0, p75 = 3.0 }

[[producers]]
group = "all"
count = 5
rate = 40.0
request_timeout_ms = 200
timeout_ms = 100
record_bytes = { p50 = 300, p75 = 900 }

[[producers]]
group = "idempotent"
count = 3
rate = 40.0
idempotence = true
partitioner = "random"
request_timeout_ms = 200

[[producers]]
group = "one"
count = 3
rate = 40.0
acks = 1
batch_size = 10
linger_ms = 20
partitioner = "round-robin"

[[producers]]
group = "none"
rate = 40.0
acks = 0
spacing = "even"
partitioner = "modulo"

[[consumers]]
group = "readers"
count = 2
min_bytes = 500
max_wait_ms = 50
poll_interval_ms = { p50 = 1.0, p75 = 2.0 }

[[faults]]
kind = "stall_follower"
broker = 1
at_ms = 200
duration_ms = 150
[[faults]]
kind = "kill"
broker = 0
at_ms = 400
duration_ms = 200
[[faults]]
kind = "lose_responses"
api = "produce"
cut = false
at_ms = 100
count = 5
share = 0.1
[[faults]]
kind = "pause"
broker = 2
at_ms = 700
duration_ms = 100
"""


def digests(trace: Path) -> dict[str, str]:
    """A digest of each file of a trace."""
    files = sorted(path for path in trace.rglob("*") if path.is_file())
    return {
        path.relative_to(trace).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "trace"
    run_scenario(EVERYTHING, folder)
    return folder


def test_scenario_covers_all_tables_and_outcomes(trace: Path) -> None:
    assert set(digests(trace)) == {
        "run.json",
        "changes/part-00000.parquet",
        "operations/part-00000.parquet",
        "reads/part-00000.parquet",
        "sends/part-00000.parquet",
    }
    ran = run_scenario(EVERYTHING)
    assert ran.summary["faults"] == 4 and ran.summary["elections"] >= 1
    for row in ran.summary["purgatories"]:
        assert row["completed"] > 0, row
    assert any(row["expired"] for row in ran.summary["purgatories"])


def test_the_same_seed_gives_the_same_bytes(trace: Path, tmp_path: Path) -> None:
    run_scenario(EVERYTHING, tmp_path / "again")
    assert digests(tmp_path / "again") == digests(trace)


def test_another_seed_gives_another_trace(trace: Path, tmp_path: Path) -> None:
    run_scenario(EVERYTHING, tmp_path / "other", seed=12)
    other = digests(tmp_path / "other")
    assert other.keys() == digests(trace).keys()
    assert not set(other.values()) & set(digests(trace).values())


def test_seed_gives_the_same_bytes_despite_another_hash_seed(trace: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "everything.toml"
    scenario.write_text(EVERYTHING)
    ran = subprocess.run(
        [sys.executable, "-m", "purgatory", "simulate", str(scenario), "--quiet", "--trace", "out"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert digests(tmp_path / "out") == digests(trace)


def test_run_without_a_trace_has_the_same_summary(trace: Path) -> None:
    written = json.loads((trace / "run.json").read_text())["summary"]
    assert json.loads(json.dumps(run_scenario(EVERYTHING).summary)) == written
