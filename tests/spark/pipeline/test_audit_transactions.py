"""The audit of the traces of a cluster, and of a proxy in front of one: where the cluster is whole
nothing is violated; the audit finds each injected anomaly, as often as it happened, and nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from purgatory.cluster import ClusterConfig, ThreadedCluster, inter_broker, start_trace
from purgatory.cluster.records import new_marker
from purgatory.kafka import (
    ErrorCode,
    FetchIsolation,
    KafkaError,
    ProducerIdentity,
    RecordBatch,
    TopicPartition,
    TransactionResult,
    write_markers,
)
from purgatory.kafka.groups.offset_metadata_manager import OffsetMetadataManager
from purgatory.kafka.log.producer_state import ProducerStates
from purgatory.kafka.replication.partition import Partition
from purgatory.pipeline.engines.run import run_job, run_opened
from purgatory.pipeline.engines.spark.traces import opened_in
from purgatory.pipeline.ingest.trace_set import read_trace_set
from purgatory.pipeline.jobs.registry import AUDIT
from purgatory.proxy import ProxyConfig, ThreadedProxy
from tests.wire.cluster.transactional_run import (
    AMID,
    COMMITTED,
    CONSUMERS,
    PRODUCERS,
    RESULTS,
    UNCOMMITTED,
    Served,
    copy_in_transactions,
    create_topics,
    read_amid,
    read_results,
    take_over,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Break = Callable[[pytest.MonkeyPatch], None]
Found = dict[tuple[str, str | None, str, str | None], int]

ISOLATED = f"isolation={COMMITTED}"
ABORTED_COPIES = 6
"""Records of the three transactions of the copier that it aborts, of 11; 8 are committed."""


def _nothing(_: pytest.MonkeyPatch) -> None:
    """Leave the cluster whole."""


def _aborted_are_not_told(patch: pytest.MonkeyPatch) -> None:
    """Readers with read_committed see no aborted transaction, and show all records."""
    patch.setattr(ProducerStates, "aborted_between", lambda *_: ())


def _one_marker_is_wrong(patch: pytest.MonkeyPatch) -> None:
    """On one of two partitions the second transaction that is committed gets the other marker."""
    commits = 0

    def write(
        manager: Any, groups: Any, markers: Mapping[TopicPartition, RecordBatch], respond: Any
    ) -> None:
        nonlocal commits
        at = TopicPartition(RESULTS, 1)
        marker = markers.get(at)
        if marker is not None and marker.control is TransactionResult.COMMIT:
            commits += 1
            if commits == 2:
                producer = ProducerIdentity(marker.producer_id, marker.producer_epoch)
                wrong = new_marker(producer, TransactionResult.ABORT, marker.coordinator_epoch)
                markers = {**markers, at: wrong}
        write_markers(manager, groups, markers, respond)

    patch.setattr(inter_broker, "write_markers", write)


def _zombies_pass(patch: pytest.MonkeyPatch) -> None:
    """Leaders take records of producers whose epoch is over, and don't ask the coordinator."""
    patch.setattr(ProducerStates, "begin_verification", lambda *_, **__: False)
    find_duplicate = ProducerStates.find_duplicate

    def find(states: ProducerStates, *batch: Any) -> Any:
        try:
            return find_duplicate(states, *batch)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_PRODUCER_EPOCH:
                raise
            return None

    patch.setattr(ProducerStates, "find_duplicate", find)


def _offsets_end_otherwise(patch: pytest.MonkeyPatch) -> None:
    """Coordinators of groups drop the offsets that are committed, and keep those that are not."""
    end_transaction = OffsetMetadataManager.end_transaction
    other = {
        TransactionResult.COMMIT: TransactionResult.ABORT,
        TransactionResult.ABORT: TransactionResult.COMMIT,
    }

    def end(
        manager: OffsetMetadataManager, partition: int, producer_id: int, how: TransactionResult
    ) -> None:
        end_transaction(manager, partition, producer_id, other[how])

    patch.setattr(OffsetMetadataManager, "end_transaction", end)


def _open_ones_are_shown(patch: pytest.MonkeyPatch) -> None:
    """Leaders return undecided records to read_committed."""

    def visible_end(partition: Partition, isolation: FetchIsolation) -> int:
        log = partition.log
        return log.end_offset if isolation is FetchIsolation.LOG_END else log.high_watermark

    patch.setattr(Partition, "visible_end", visible_end)


RUNS: Mapping[str, tuple[Break, Found]] = {
    "whole": (
        _nothing,
        {
            ("aborted_read", "copier", "permitted", f"isolation={UNCOMMITTED}"): ABORTED_COPIES,
            ("aborted_read", "zombie", "permitted", f"isolation={UNCOMMITTED}"): 1,
        },
    ),
    "aborted": (
        _aborted_are_not_told,
        {
            ("aborted_read", "copier", "violation", ISOLATED): ABORTED_COPIES,
            ("aborted_read", "zombie", "violation", ISOLATED): 1,
        },
    ),
    "markers": (
        _one_marker_is_wrong,
        {
            ("partial_transaction", COMMITTED, "violation", ISOLATED): 1,
            ("lost_write", "copier", "violation", "acks=all"): 1,
        },
    ),
    # The record lands in the transaction of the successor, and is shown with it.
    "zombies": (
        _zombies_pass,
        {
            ("zombie_write", "zombie", "violation", None): 1,
            ("aborted_read", "zombie", "violation", ISOLATED): 1,
            ("multi_writer", "successor", "permitted", "single_writer=false"): 1,
        },
    ),
    "offsets": (
        _offsets_end_otherwise,
        {
            ("offset_without_result", "copies", "violation", None): 3,
            ("result_without_offset", "copies", "violation", None): 8,
        },
    ),
    "early": (
        _open_ones_are_shown,
        {("partial_transaction", AMID, "violation", ISOLATED): 1},
    ),
}


def _run(folder: Path, name: str, broken: Break, by_proxy: bool) -> None:
    trace, writer = start_trace(folder, name, PRODUCERS, CONSUMERS)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        broken(patch)
        cluster = ThreadedCluster(ClusterConfig(brokers=3), None if by_proxy else trace)
        served: Served = stack.enter_context(cluster)
        create_topics(cluster)
        if by_proxy:
            config = ProxyConfig(to=cluster.bootstrap_servers.split(","))
            served = stack.enter_context(ThreadedProxy(config, trace))
        copy_in_transactions(served)
        take_over(served)
        if name == "early":
            read_amid(served)
        read_results(served, COMMITTED)
        if name == "whole":
            read_results(served, UNCOMMITTED)
    trace.close()
    writer.finish(trace.duration_ms, {})


@pytest.fixture(scope="module", params=["cluster", "proxy"])
def traces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The traces of all runs, written by the cluster, or by a proxy in front of it."""
    root = tmp_path_factory.mktemp(request.param)
    for name, (broken, _) in RUNS.items():
        _run(root / name, name, broken, request.param == "proxy")
    return root


# Spark's verdicts on any transactions are also tested by far shorter runs.
@pytest.fixture(
    scope="module",
    params=["duckdb", pytest.param("spark", marks=[pytest.mark.exhaustive, pytest.mark.spark])],
)
def audited(
    request: pytest.FixtureRequest, traces: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Found], list[dict[str, Any]]]:
    """The findings of each run, and the witnesses of all."""
    out = tmp_path_factory.mktemp("audited") / "out"
    if request.param == "spark":
        out.mkdir()
        spark = request.getfixturevalue("spark")
        with opened_in(spark, read_trace_set([traces]), out) as opened:
            run_opened(AUDIT, opened)
    else:
        run_job("audit", [traces], out, engine="duckdb")
    rows = [row for row in pq.read_table(out / "audit").to_pylist() if row["count"]]
    witnesses = pq.read_table(out / "witnesses").to_pylist()
    found: dict[str, Found] = {name: {} for name in RUNS}
    for row in rows:
        if (row["group"], row["verdict"]) == ("copies", "permitted"):
            continue  # it subscribes: redeliveries to it concern no transaction
        key = row["anomaly"], row["group"], row["verdict"], row["setting"]
        found[row["run_id"].partition("-")[0]][key] = row["count"]
    return found, witnesses


@pytest.mark.parametrize("name", RUNS)
def test_audit_finds_each_injected_transaction_anomaly_alone(
    audited: tuple[dict[str, Found], list[dict[str, Any]]], traces: Path, name: str
) -> None:
    if name == "offsets" and traces.name.startswith("proxy"):
        # Frames have the end of a transaction, not the coordinator's handling of its offsets.
        assert audited[0][name] == {}
    else:
        assert audited[0][name] == RUNS[name][1]


def test_witnesses_show_the_transactions(
    audited: tuple[dict[str, Found], list[dict[str, Any]]],
) -> None:
    shown = set()
    for witness in audited[1]:
        anomaly, number = witness["anomaly"], witness["transaction"]
        if anomaly in ("lost_write", "multi_writer") or witness["group"] == "copies":
            continue
        [end] = [event for event in witness["events"] if event["event"] == "transaction"]
        assert end["transaction"] == number
        sends = [event for event in witness["events"] if event["event"] == "send"]
        assert {send["transaction"] for send in sends} == {number}
        shown.add((anomaly, end["transactional_id"], end["outcome"]))
    assert shown == {
        ("aborted_read", "copier", "aborted"),
        ("aborted_read", "taken over", "aborted"),
        ("partial_transaction", "copier", "committed"),
        ("partial_transaction", "slow", "committed"),
        ("zombie_write", "taken over", "aborted"),
    }
