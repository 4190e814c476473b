"""Transactions in virtual time: what becomes of them under faults, and what of who stands still."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from purgatory.kafka import (
    ErrorCode,
    ProducerIdentity,
    TopicPartition,
    TransactionCoordinator,
    TransactionResult,
)
from purgatory.kafka.groups.group_manager import GroupManager
from purgatory.kafka.log.record_batch import RecordBatch
from purgatory.simulation import InvariantViolation, ScenarioError, Simulation, parse_scenario
from purgatory.simulation.coordinators import SimulatedMarkerChannel
from purgatory.simulation.engine import VirtualEngine
from purgatory.simulation.runtime import RealTimeRuntime
from tests.simulation.running import Ran, run_scenario

HEAD = """
name = "transactions"
duration_ms = 8_000
drain_ms = 60_000

[cluster]
session_timeout_ms = 500

[topic]
partitions = 3
"""


def shop(settings: str = "", rate: float = 10.0) -> str:
    return f"""
[[producers]]
group = "shop"
count = 2
rate = {rate}
idempotence = true
timeout_ms = 500

[producers.transactions]
requests = 5
timeout_ms = 2_000
{settings}
"""


READERS = """
[[consumers]]
group = "all"

[[consumers]]
group = "committed"
isolation = "read_committed"
"""

BILLING = """
[[producers]]
group = "billing"
batch_size = 5
idempotence = true
timeout_ms = 500

[producers.transactions]
reads = "biller"
writes = "bills"
timeout_ms = 3_000
aborted = 0.2

[[consumers]]
group = "biller"
isolation = "read_committed"

[[consumers]]
group = "payments"
topic = "bills"
isolation = "read_committed"
"""

MEMBERS = """
session_timeout_ms = 700
heartbeat_interval_ms = 100
max_poll_interval_ms = 2_000
"""


def shared_billing(membership: str = "dynamic", settings: str = "aborted = 0.1") -> str:
    """Two producers that make bills of what the members of a group read."""
    text = BILLING.replace('"billing"', '"billing"\ncount = 2').replace("aborted = 0.2", settings)
    reader = 'group = "biller"'
    return text.replace(reader, f'{reader}\ncount = 2\nmembership = "{membership}"{MEMBERS}')


def fault(kind: str, at_ms: int, more: str) -> str:
    return f'[[faults]]\nkind = "{kind}"\nat_ms = {at_ms}\n{more}\n'


def transactions_of(ran: Ran, group: str = "shop") -> dict[str, Any]:
    return next(row for row in ran.summary["transactions"] if row["group"] == group)


def read_by(ran: Ran, group: str) -> int:
    row = next(row for row in ran.summary["consumers"] if row["group"] == group)
    return int(row["records"] - row["reread"])


def test_what_is_committed_is_read_and_nothing_else() -> None:
    ran = run_scenario(HEAD + shop(settings="aborted = 0.3") + READERS)
    row = transactions_of(ran)
    assert row["aborted"] > 0 and row["committed"] > 0
    assert row["begun"] == row["committed"] + row["aborted"]
    assert row["commit_us"]["count"] == row["transaction_us"]["count"] == row["committed"]
    assert read_by(ran, "all") == ran.producers("shop")["records"]
    assert 0 < read_by(ran, "committed") < read_by(ran, "all")


def test_each_purgatory_of_transactions_has_its_operations() -> None:
    ran = run_scenario(HEAD + shop())
    begun = transactions_of(ran)["begun"]
    assert ran.operations("TransactionMarker", "transaction")["operations"] >= begun
    assert ran.operations("TransactionTimeout", "transaction")["completed"] >= begun
    assert ran.operations("Produce", "coordinator")["operations"] >= begun


def test_who_stands_still_for_too_long_is_aborted_and_fenced() -> None:
    ran = run_scenario(
        HEAD + shop(settings="zombies = 0.1\nzombie_ms = 4_000") + READERS,
    )
    row = transactions_of(ran)
    assert row["fenced"] == row["zombies"] > 0
    assert row["instances"] == 2 + row["fenced"]
    assert ran.operations("TransactionTimeout", "transaction")["expired"] == row["fenced"]


def test_who_is_back_in_time_goes_on() -> None:
    row = transactions_of(
        run_scenario(HEAD + shop(settings="zombies = 0.1\nzombie_ms = 1_000")),
    )
    assert (row["fenced"], row["instances"]) == (0, 2)
    assert row["zombies"] > 0


def test_a_successor_fences_the_zombie_before_its_time_is_up(tmp_path: Path) -> None:
    settings = "zombies = 0.1\nzombie_ms = 1_500\nsuccessor_ms = 300"
    ran = run_scenario(HEAD + shop(settings, rate=100.0) + READERS, tmp_path / "trace")
    row = transactions_of(ran)
    assert row["fenced"] == row["zombies"] > 0
    assert ran.operations("TransactionTimeout", "transaction")["expired"] == 0
    refused = {row["error"] for row in ran.rows("sends") if row["outcome"] == "fail"}
    assert refused and refused <= {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}
    for producer in (0, 1):
        numbered = {row["sequence"] for row in ran.rows("sends") if row["producer"] == producer}
        assert numbered == set(range(len(numbered))), "what was never sent has no number"
    traced = ran.rows("transactions")
    assert sum(one["ended_by"] == "coordinator" for one in traced) == row["fenced"]
    assert {one["outcome"] for one in traced} == {"committed", "aborted"}
    numbers = {one["transaction"]: one["transactional_id"] for one in traced}
    for sent in ran.rows("sends"):
        assert numbers[sent["transaction"]] == sent["transactional_id"]


FAULTS = {
    "each broker dies": "".join(
        fault("kill", 1_000 + 2_000 * broker, f"broker = {broker}\nduration_ms = 1_000")
        for broker in range(3)
    ),
    "each broker stands still": "".join(
        fault("pause", 1_000 + 2_000 * broker, f"broker = {broker}\nduration_ms = 1_500")
        for broker in range(3)
    ),
    "links are cut": "".join(
        fault("cut_link", 1_000 + 2_000 * a, f"a = {a}\nb = {(a + 1) % 3}\nduration_ms = 1_500")
        for a in range(3)
    ),
    "answers are lost": fault("lose_responses", 500, "share = 0.1\nduration_ms = 6_000")
    + fault("lose_responses", 500, "share = 0.05\ncut = false\nduration_ms = 6_000"),
    "requests are lost": fault("lose_requests", 500, "share = 0.1\nduration_ms = 6_000"),
    "answers come late and twice": fault(
        "delay_responses", 500, "by_ms = 700\nshare = 0.1\nduration_ms = 6_000"
    )
    + fault("duplicate_responses", 500, "duration_ms = 6_000"),
    "connections are cut": "".join(
        fault("cut_connections", at, "") for at in range(500, 7_000, 70)
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_record_is_transformed_once_whatever_happens(name: str) -> None:
    """The run itself checks that no transaction is seen in part, and no record left out."""
    settings = "aborted = 0.1\nzombies = 0.05\nzombie_ms = 1_000\nsuccessor_ms = 400"
    ran = run_scenario(HEAD + shop(settings=settings) + READERS + BILLING + FAULTS[name])
    assert ran.summary["drained"]
    assert read_by(ran, "payments") == read_by(ran, "biller") == read_by(ran, "committed") > 0
    for group in ("shop", "billing"):
        counts = ran.producers(group)
        assert (counts["duplicates"], counts["reorderings"], counts["lost"]) == (0, 0, 0)
        assert transactions_of(ran, group)["unsettled"] == 0


COMING_AND_GOING = {
    "staying": "",
    "leaving": "stay_ms = 1_500\naway_ms = 300\n",
    "working": "poll_interval_ms = { p50 = 20.0, p75 = 80.0 }\n",
}


@pytest.mark.parametrize("membership", ["dynamic", "static"])
@pytest.mark.parametrize("coming", COMING_AND_GOING)
@pytest.mark.parametrize("name", [None, *FAULTS])
def test_a_group_transforms_each_record_once_though_its_members_take_over(
    name: str | None, coming: str, membership: str
) -> None:
    settings = "aborted = 0.1\nzombies = 0.1\nzombie_ms = 1_500"
    billing = shared_billing(membership, settings)
    billing = billing.replace(MEMBERS, MEMBERS + COMING_AND_GOING[coming])
    faults = "" if name is None else FAULTS[name]
    ran = run_scenario(HEAD + shop(settings="aborted = 0.1") + READERS + billing + faults)
    assert ran.summary["drained"]
    assert read_by(ran, "payments") == read_by(ran, "biller") == read_by(ran, "committed") > 0
    row = transactions_of(ran, "billing")
    assert row["begun"] == row["committed"] + row["aborted"] + row["fenced"] + row["failed"]


def test_who_stood_still_while_the_group_went_on_is_refused_its_offsets() -> None:
    """No producer is fenced: each has its transactional id, and its time is not up."""
    billing = shared_billing(settings="zombies = 0.2\nzombie_ms = 1_500")
    row = transactions_of(run_scenario(HEAD + shop() + READERS + billing), "billing")
    assert 0 < row["stale"] == row["aborted"]
    assert (row["fenced"], row["failed"], row["instances"]) == (0, 0, 2)
    billing = billing.replace("zombie_ms = 1_500", "zombie_ms = 100")
    row = transactions_of(run_scenario(HEAD + shop() + READERS + billing), "billing")
    assert row["zombies"] > 0 == row["stale"]


def test_a_group_whose_generations_nobody_asks_for_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with producers that don't know how their consumer stands in its group."""
    monkeypatch.setattr(GroupManager, "check_commit", lambda *_, **__: None)
    billing = shared_billing(settings="zombies = 0.2\nzombie_ms = 1_500")
    with pytest.raises(InvariantViolation, match="transformed twice"):
        run_scenario(HEAD + shop() + READERS + billing)


def _commit_what_was_aborted(
    original: Callable[..., RecordBatch],
) -> Callable[..., RecordBatch]:
    def marker(
        self: object, producer: ProducerIdentity, how: TransactionResult, epoch: int
    ) -> RecordBatch:
        return original(self, producer, TransactionResult.COMMIT, epoch)

    return marker


def _send_no_markers_to_broker_2(
    original: Callable[..., None],
) -> Callable[..., None]:
    def send(self: Any, broker_id: int, markers: dict[Any, RecordBatch], respond: Any) -> None:
        if broker_id == 2:
            respond(dict.fromkeys(markers, ErrorCode.NONE))
        else:
            original(self, broker_id, markers, respond)

    return send


def _abort_on_broker_2(
    original: Callable[..., None],
) -> Callable[..., None]:
    def send(self: Any, broker_id: int, markers: dict[Any, RecordBatch], respond: Any) -> None:
        if broker_id == 2:
            for marker in markers.values():
                marker.control = TransactionResult.ABORT
        original(self, broker_id, markers, respond)

    return send


BROKEN: dict[str, tuple[str, str, Callable[[Any], Any], str]] = {
    "aborted transactions are committed": (
        "purgatory.simulation.coordinators._TaggedTransactionsCodec",
        "marker",
        _commit_what_was_aborted,
        "without a request|wrong result",
    ),
    "a marker says something else": (
        "purgatory.simulation.coordinators.SimulatedMarkerChannel",
        "send_markers",
        _abort_on_broker_2,
        "in part|wrong result",
    ),
    "what is aborted is not told": (
        "purgatory.kafka.log.producer_state.ProducerStates",
        "aborted_between",
        lambda _: lambda *_: (),
        "a batch that is not committed was read",
    ),
    "the end of what is stable is passed over": (
        "purgatory.kafka.log.log.Log",
        "last_stable_offset",
        lambda _: property(lambda log: log.high_watermark),
        "a batch that is not committed was read",
    ),
    "offsets are not committed with their transaction": (
        "purgatory.kafka.groups.offsets.GroupOffsets",
        "end_transaction",
        lambda original: (
            lambda self, partition, producer_id, _: original(
                self, partition, producer_id, TransactionResult.ABORT
            )
        ),
        "transformed twice",
    ),
}
"""Parts of the model, what stands in their place, and what the run says of it."""


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_on_purpose_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, method, broken, message = BROKEN[name]
    module, _, of_class = place.rpartition(".")
    target = getattr(__import__(module, fromlist=[of_class]), of_class)
    monkeypatch.setattr(target, method, broken(getattr(target, method)))
    settings = "aborted = 0.3\nzombies = 0.1\nzombie_ms = 1_000\nsuccessor_ms = 400"
    text = HEAD.replace("drain_ms = 60_000", "drain_ms = 10_000")
    billing = BILLING.replace("aborted = 0.2", settings)
    with pytest.raises(InvariantViolation, match=message):
        run_scenario(text + shop(settings=settings) + READERS + billing)


def test_a_run_with_a_missing_marker_does_not_come_to_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = SimulatedMarkerChannel.send_markers
    monkeypatch.setattr(
        SimulatedMarkerChannel, "send_markers", _send_no_markers_to_broker_2(original)
    )
    ran = run_scenario(HEAD.replace("drain_ms = 60_000", "drain_ms = 5_000") + shop() + READERS)
    assert not ran.summary["drained"]
    assert read_by(ran, "committed") < read_by(ran, "all")


def test_transactions_are_simulated_in_virtual_time_only() -> None:
    with pytest.raises(ScenarioError, match="virtual time only"):
        Simulation(parse_scenario(HEAD + shop(), "a.toml", Path()), make_runtime=RealTimeRuntime)


def test_nothing_is_checked_once_a_committed_part_of_a_log_is_lost() -> None:
    ran = run_scenario(HEAD + shop())
    watch = ran.run.transactions
    assert not watch.is_void
    watch.is_void = True
    watch.check_transformations("shop", 99)
    assert ran.run.invariants.violation is None


def test_the_coordinators_hold_their_own_invariants_at_the_end() -> None:
    ran = run_scenario(HEAD + shop(settings="aborted = 0.3") + FAULTS["each broker dies"])
    for broker in ran.run.brokers:
        assert isinstance(broker.transactions, TransactionCoordinator)
        broker.transactions._check()


class _CoordinatorsBroker:
    """Broker 0, from which broker 1 may be cut off; what is submitted is done at once."""

    id = 0

    def __init__(self) -> None:
        self.is_cut = False
        self.faults = self
        self.active = True

    def cuts_link(self, first: int, second: int) -> bool:
        return self.is_cut and 1 in (first, second)

    def submit(self, function: Callable[..., object], *args: Any) -> None:
        function(*args)


@pytest.mark.parametrize("moves", [True, False])
def test_an_answer_that_is_cut_off_is_not_waited_for_once_another_leads(moves: bool) -> None:
    engine, broker = VirtualEngine(), _CoordinatorsBroker()
    scenario = parse_scenario(HEAD + shop(), "a.toml", Path()).scenario
    leaders = dict.fromkeys((TopicPartition("t", 0), TopicPartition("t", 1)), 1)
    markers = SimulatedMarkerChannel(
        cast(Any, broker), cast(Any, [broker] * 3), engine, scenario, leaders.get
    )
    asked: list[Any] = []
    connection = cast(Any, SimpleNamespace(send=asked.append, generation=0))
    markers._idle[1] = [connection]
    told: list[tuple[int, Any]] = []
    marker = RecordBatch.end_transaction(7, 0, TransactionResult.COMMIT)
    markers.send_markers(
        1, dict.fromkeys(leaders, marker), lambda codes: told.append((engine.now_ns(), codes))
    )
    broker.is_cut = True
    engine.call_at(1_000_000_000, asked[0]._on_response, dict.fromkeys(leaders, ErrorCode.NONE))
    if moves:
        engine.call_at(2_000_000_000, leaders.update, {TopicPartition("t", 1): 2})

    def heal() -> None:
        broker.is_cut = False
        markers.on_faults_changed()

    engine.call_at(5_000_000_000, heal)
    engine.run(lambda: True)
    [(at_ns, codes)] = told
    if moves:
        assert 2_000_000_000 <= at_ns <= 2_050_000_000
        assert set(codes.values()) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    else:
        assert at_ns == 5_000_000_000
        assert set(codes.values()) == {ErrorCode.NONE}
