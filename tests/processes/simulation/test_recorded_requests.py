"""A recorded request log drives a run: small made ones, and an hour of real requests at hand."""

from __future__ import annotations

import csv
import datetime
import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory.simulation import Simulation, parse_scenario
from tests.processes.cli.conftest import RunCommand
from tests.unit.simulation.running import read_table

ROOT = Path(__file__).parents[3]
LOG_VARIABLE = "PURGATORY_REQUEST_LOG"

SCENARIO = """
name = "recorded"

[[producers]]
group = "requests"
count = 2
arrivals = { file = "%s", time = "at", bytes = "tokens", bytes_per_unit = 4, speed = 10.0 }

[[consumers]]
group = "serving"
"""
START = datetime.datetime(2023, 11, 16, 18, 15, 46, tzinfo=datetime.UTC)


def write_scenario(folder: Path, log: str) -> str:
    path = folder / "recorded.toml"
    path.write_text(SCENARIO % log)
    return str(path)


def write_csv(path: Path, rows: list[str]) -> None:
    path.write_text("\n".join(["at,tokens,model", *rows]) + "\n", encoding="utf-8")


def test_arrivals_and_sizes_are_those_of_the_request_log(
    tmp_path: Path, run_command: RunCommand
) -> None:
    (tmp_path / "logs").mkdir()
    rows = [
        f"{(START + datetime.timedelta(seconds=second)).isoformat()},{second + 1},x"
        for second in range(10)
    ]
    write_csv(tmp_path / "logs" / "requests.csv", rows)
    # The log's path starts at the scenario's folder, wherever the command is run.
    scenario = write_scenario(tmp_path, "logs/requests.csv")
    ran = run_command("simulate", scenario, "--quiet", "--trace", str(tmp_path / "trace"))
    assert ran.status == 0, ran.err
    assert "requests: 10 recorded arrivals" in ran.out
    sends = read_table(tmp_path / "trace", "sends")
    assert sorted(row["size_bytes"] for row in sends) == [4 * (n + 1) for n in range(10)]
    # Ten times as fast as recorded; one after the other they go round the two producers.
    by_time = sorted(sends, key=lambda row: row["send_us"])
    assert [row["send_us"] for row in by_time] == [100_000 * n for n in range(10)]
    assert [row["producer"] for row in by_time] == [0, 1] * 5


@pytest.mark.parametrize(
    "times",
    [
        ["2023-11-16T18:15:46.5Z", "2023-11-16T18:15:47.500000001Z"],
        ["2023-11-16T20:15:46.5+02:00", "2023-11-16T18:15:47.5+00:00"],
        ["2023-11-16 18:15:46.5000000", "2023-11-16 18:15:47.5000000"],
    ],
    ids=["zulu", "offset", "space"],
)
def test_iso_times_of_any_form_drive_the_same_run(
    times: list[str], tmp_path: Path, run_command: RunCommand
) -> None:
    write_csv(tmp_path / "requests.csv", [f"{time},5,x" for time in times])
    scenario = write_scenario(tmp_path, "requests.csv")
    ran = run_command("simulate", scenario, "--quiet", "--strict", "--json")
    assert ran.status == 0, ran.err
    (group,) = json.loads(ran.out)["producers"]
    assert group["acknowledged"] == group["arrivals"]["rows"] == 2
    assert 100 <= json.loads(ran.out)["virtual_ms"] <= 200


def test_a_parquet_log_gives_the_run_of_the_csv_log(
    tmp_path: Path, run_command: RunCommand
) -> None:
    moments = [START + datetime.timedelta(milliseconds=37 * number) for number in range(50)]
    write_csv(
        tmp_path / "requests.csv", [f"{at.isoformat()},{n},x" for n, at in enumerate(moments)]
    )
    table = pa.table({"at": pa.array(moments, pa.timestamp("us", "UTC")), "tokens": range(50)})
    pq.write_table(table, tmp_path / "requests.parquet")
    printed = [
        run_command("simulate", write_scenario(tmp_path, log), "--quiet").out
        for log in ("requests.csv", "requests.parquet")
    ]
    assert printed[0] == printed[1] != ""


BAD = [
    "2023-11-16T18:15:46Z,10,x",
    "soon,10,x",
    "2023-11-16T18:15:47Z,-3,x",
    "2023-11-16T18:15:48Z",
]


def test_bad_rows_are_skipped_counted_and_named(tmp_path: Path, run_command: RunCommand) -> None:
    write_csv(tmp_path / "requests.csv", BAD)
    scenario = write_scenario(tmp_path, "requests.csv")
    ran = run_command("simulate", scenario, "--quiet")
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert "requests: 1 recorded arrivals" in lines
    assert "requests: 3 bad rows were skipped:" in lines
    assert "  row 2: at = 'soon': must be an ISO 8601 time" in ran.out
    assert "  row 3: tokens = '-3': must be at least 0" in ran.out
    assert "  row 4: tokens = '': must be a number" in ran.out
    as_data = json.loads(run_command("simulate", scenario, "--quiet", "--json").out)
    assert as_data["producers"][0]["arrivals"]["bad_rows_by_column"] == {"at": 1, "tokens": 2}


def test_strict_stops_at_a_bad_row(tmp_path: Path, run_command: RunCommand) -> None:
    write_csv(tmp_path / "requests.csv", BAD)
    scenario = write_scenario(tmp_path, "requests.csv")
    ran = run_command("simulate", scenario, "--strict", "--trace", str(tmp_path / "trace"))
    assert ran.status == 2
    assert f"{tmp_path / 'requests.csv'}: row 2: at = 'soon': must be an ISO 8601 time" in ran.err
    assert ran.out == "" and not (tmp_path / "trace").exists()


@pytest.fixture
def real_log() -> Path:
    """An hour of requests to a language-model service, where it is at hand."""
    given = os.environ.get(LOG_VARIABLE)
    path = Path(given) if given else ROOT / ".." / "shared" / "data" / "llm-requests.csv"
    if not path.is_file():
        # In CI, too: it is somebody else's data, which comes with neither the code nor a package.
        pytest.skip(f"no request log at hand: {path} (name one in {LOG_VARIABLE})")
    return path.resolve()


def test_an_hour_of_real_requests_goes_through_all_three_brokers(
    real_log: Path, tmp_path: Path
) -> None:
    text = (ROOT / "docs" / "simulation.md").read_text(encoding="utf-8")
    scenario = re.search(
        r'^```toml\n(name = "llm-requests"\n.*?)^```$', text, re.DOTALL | re.MULTILINE
    )
    assert scenario is not None
    (tmp_path / "llm-requests.csv").symlink_to(real_log)
    summary = Simulation(parse_scenario(scenario[1], "llm-requests.toml", tmp_path)).run()
    with real_log.open(newline="") as file:
        rows = sum(1 for _ in csv.DictReader(file))
    (group,) = summary["producers"]
    assert group["records"] == group["arrivals"]["rows"] == rows > 1_000
    assert group["arrivals"]["bad_rows"] == 0
    assert group["acknowledged"] == rows
    assert (group["duplicates"], group["reorderings"], group["lost"]) == (0, 0, 0)
    for broker in range(3):
        for purgatory in ("Produce", "Fetch"):
            (waited,) = [
                row["completed"]
                for row in summary["brokers"]
                if (row["broker"], row["purgatory"]) == (broker, purgatory)
            ]
            assert waited > rows / 10, (broker, purgatory)
