"""The head of a trace says how its clients were configured."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from purgatory.simulation import Simulation, parse_scenario

TEXT = """
name = "two-groups"
duration_ms = 200

[topic]
partitions = 2

[[producers]]
group = "orders"
rate = 50.0
acks = "all"
idempotence = true
max_in_flight = 3
retries = 7

[[producers]]
group = "clicks"
rate = 50.0
acks = 0

[[consumers]]
group = "billing"
"""


def head_of(text: str, folder: Path) -> dict[str, object]:
    Simulation(parse_scenario(text, "test", folder), trace_folder=folder / "trace").run()
    head: dict[str, object] = json.loads((folder / "trace" / "run.json").read_text())
    return head


def test_run_json_has_the_settings_of_clients(tmp_path: Path) -> None:
    head = head_of(TEXT, tmp_path)
    orders = {"group": "orders", "acks": -1, "idempotence": True, "max_in_flight": 3, "retries": 7}
    defaults = {"idempotence": False, "max_in_flight": 5, "retries": 2_147_483_647}
    assert head["producers"] == [
        {**orders, "single_writer": False},
        {"group": "clicks", "acks": 0, **defaults, "single_writer": False},
    ]
    assert head["consumers"] == [
        {"group": "billing", "assignment": "assign", "isolation": "read_uncommitted"}
    ]


def test_one_producer_alone_is_the_single_writer(tmp_path: Path) -> None:
    alone = TEXT.split("[[producers]]")
    head = head_of("[[producers]]".join(alone[:2]), tmp_path)
    assert [group["single_writer"] for group in head["producers"]] == [True]  # type: ignore[attr-defined]


def test_operations_name_their_partitions(tmp_path: Path) -> None:
    head_of(TEXT, tmp_path)
    operations = pq.read_table(tmp_path / "trace" / "operations").to_pylist()
    assert {row["kind"] for row in operations} == {"producer", "follower", "consumer"}
    assert all(len(row["watch_keys"]) == row["keys"] > 0 for row in operations)
    assert {key for row in operations for key in row["watch_keys"]} == {"events-0", "events-1"}
