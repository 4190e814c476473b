"""Random faults while clients send: the audit of it.

Nothing that was acknowledged with acks=all is lost; with idempotence nothing is twice or out of
order; without, duplicates and reorderings are where the configuration permits them, and only there.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow.parquet as pq
import pytest

from purgatory.cli.main import main
from tests.processes.cluster.load_and_faults import PRODUCERS, run

SECONDS = 8
SEED = 20


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The result of `purgatory audit` for a run; the fixture fails on a violation."""
    folder = tmp_path_factory.mktemp("load")
    acknowledged = run(SECONDS, SEED, folder / "trace")
    assert acknowledged.keys() == PRODUCERS.keys()
    assert min(acknowledged.values()) > 100, "clients got through between the faults"
    words = ["audit", "--engine", "duckdb", str(folder / "trace"), "--out", str(folder / "audit")]
    assert main(words) == 0
    head = json.loads((folder / "trace" / "run.json").read_text())
    assert head["complete"]
    rows: list[dict[str, Any]] = pq.read_table(folder / "audit" / "audit").to_pylist()
    return rows


@pytest.mark.slow
def test_acknowledged_records_are_never_lost(verdicts: list[dict[str, Any]]) -> None:
    assert [row for row in verdicts if row["anomaly"] == "lost_write" and row["count"]] == []


def test_idempotent_producer_neither_duplicates_nor_reorders(
    verdicts: list[dict[str, Any]],
) -> None:
    wrong = {"duplicate", "lost_ack_duplicate", "retry_reorder", "nonmonotonic_send"}
    of_idempotent = [row for row in verdicts if row["group"] == "idempotent"]
    assert [row for row in of_idempotent if row["anomaly"] in wrong and row["count"]] == []


def test_duplicates_without_idempotence_are_permitted(
    verdicts: list[dict[str, Any]],
) -> None:
    found = {
        (row["group"], row["verdict"], row["setting"])
        for row in verdicts
        if row["anomaly"] == "duplicate" and row["count"]
    }
    assert found, "answers were lost, so something was sent twice"
    assert {verdict for _, verdict, _ in found} == {"permitted"}
    assert {setting for _, _, setting in found} == {"idempotence=false"}


def test_reorderings_need_several_requests_in_flight(
    verdicts: list[dict[str, Any]],
) -> None:
    found = {
        (row["group"], row["verdict"])
        for row in verdicts
        if row["anomaly"] in ("retry_reorder", "nonmonotonic_send") and row["count"]
    }
    assert found <= {("in-flight-5", "permitted")}, "there may be none: few requests were refused"
