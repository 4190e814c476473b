"""Each invariant fails for a history that breaks it, and for a cluster that does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from purgatory.kafka import ProducerStates
from tests.world.history import (
    Description,
    Epoch,
    Exchange,
    Expelled,
    History,
    Leadership,
    Offset,
    ServedEarly,
)
from tests.world.invariants import INVARIANTS, broken_invariants
from tests.world.row_audit import audit_rows
from tests.world.row_world import run_row
from tests.world.rows import parse_row

_PARTITION = ("a topic's id", 0)


def _sound() -> History:
    """A history with something of everything, which breaks nothing."""
    return History(
        exchanges=[
            Exchange(1, "reader-1", "fetch", 1.0, 2.0),
            Exchange(1, "reader-1", "fetch", 2.0, 3.0, is_cut=True),
            Exchange(2, "producer", "produce", 10.0, 70.0),
            Exchange(1, "reader-1", "fetch", 99.5),
        ],
        ended_s=100.0,
        paused=[(2, 10.0, 30.0)],
        acknowledged=10,
        expelled=[Expelled("m of readers", "classic", 10.0, 25.0, 10.0, "UNKNOWN_MEMBER_ID")],
        leaderships=[Leadership("data-0", 1, 1)],
        offsets=[
            Offset("readers", _PARTITION, 5, 1.0, 2.0, True),
            Offset("readers", _PARTITION, 7, 3.0, 9.0, True),
            Offset("readers", _PARTITION, 5, 4.0, 5.0, False),
            Offset("readers", ("another id", 0), 0, 10.0, 11.0, False),
        ],
        epochs=[
            Epoch("leader", "data-0", 1, "broker 1", 1.0),
            Epoch("leader", "data-0", 1, "broker 1", 2.0),
            Epoch("leader", "data-0", 2, "broker 2", 3.0),
            Epoch("generation", "readers", 1, "", 3.0),
        ],
        throttled_s=1.5,
        descriptions=[Description("metadata", "data", {"leader": 1}, {"leader": 1})],
        before={"log: data-0": (10, "abc")},
        after={"log: data-0": (10, "abc")},
    )


def _record_anomaly(history: History) -> None:
    history.anomalies.append("lost_write: 1")


def _acknowledge_nothing(history: History) -> None:
    history.acknowledged = 0


def _leave_unanswered(history: History) -> None:
    history.exchanges.append(Exchange(1, "reader-1", "heartbeat", 50.0))


def _answer_late(history: History) -> None:
    history.exchanges.append(Exchange(1, "reader-1", "heartbeat", 5.0, 60.0))


def _cut_late(history: History) -> None:
    history.exchanges.append(Exchange(2, "reader-1", "heartbeat", 5.0, 90.0, is_cut=True))


def _expel_early(history: History) -> None:
    history.expelled.append(
        Expelled("m of readers", "consumer", 10.0, 19.0, 10.0, "FENCED_MEMBER_EPOCH")
    )


def _lead_elsewhere(history: History) -> None:
    history.leaderships.append(Leadership("data-1", 2, 3))


def _fetch_older_offset(history: History) -> None:
    history.offsets.append(Offset("readers", _PARTITION, 6, 9.5, 10.0, False))


def _commit_older_offset(history: History) -> None:
    history.offsets.append(Offset("readers", _PARTITION, 6, 9.5, 10.0, True))


def _forget_offset(history: History) -> None:
    history.offsets.append(Offset("readers", _PARTITION, -1, 9.5, 10.0, False))


def _lower_leader_epoch(history: History) -> None:
    history.epochs.append(Epoch("leader", "data-0", 1, "broker 1", 4.0))


def _share_leader_epoch(history: History) -> None:
    history.epochs.append(Epoch("leader", "data-0", 2, "broker 1", 4.0))


def _lower_generation(history: History) -> None:
    history.epochs.append(Epoch("generation", "readers", 0, "", 4.0))


def _repeat_producer_epoch(history: History) -> None:
    for holder in ("initialized at 1 s", "initialized at 2 s"):
        history.epochs.append(Epoch("producer", "producer 1 of writer", 0, holder, 5.0))


def _describe_otherwise(history: History) -> None:
    history.descriptions.append(
        Description("share group coordinator", "assignments", {"m": [0]}, {"m": []})
    )


def _lose_record_in_restart(history: History) -> None:
    history.after = {"log: data-0": (9, "ab")}


def _throttle_nobody(history: History) -> None:
    history.throttled_s = 0.0


def _serve_throttled(history: History) -> None:
    history.served_early.append(ServedEarly("producer", 1, 5.0, 6.0))


def _gain_topic_in_restart(history: History) -> None:
    history.after = {**history.after, "controller: other": 1}


DOCTORED: Mapping[Callable[[History], None], tuple[str, str]] = {
    _record_anomaly: ("audit has no violation", "log"),
    _acknowledge_nothing: ("audit has no violation", "log"),
    _leave_unanswered: ("requests are answered or cut", "broker 1"),
    _answer_late: ("requests are answered or cut", "broker 1"),
    _cut_late: ("requests are answered or cut", "broker 2"),
    _expel_early: ("members keep partitions in their session", "consumer group coordinator"),
    _lead_elsewhere: ("preferred leaders lead", "controller"),
    _fetch_older_offset: ("committed offsets never go back", "group offsets"),
    _commit_older_offset: ("committed offsets never go back", "group offsets"),
    _forget_offset: ("committed offsets never go back", "group offsets"),
    _lower_leader_epoch: ("epochs rise", "controller"),
    _share_leader_epoch: ("epochs rise", "controller"),
    _lower_generation: ("epochs rise", "classic group coordinator"),
    _repeat_producer_epoch: ("epochs rise", "transaction coordinator"),
    _describe_otherwise: ("descriptions agree with what was told", "share group coordinator"),
    _throttle_nobody: ("throttled clients wait", "quotas"),
    _serve_throttled: ("throttled clients wait", "broker 1"),
    _lose_record_in_restart: ("restart changes nothing", "log"),
    _gain_topic_in_restart: ("restart changes nothing", "controller"),
}
"""Changes that break a sound history, with the invariant and the part of the product they break."""


def test_sound_history_breaks_no_invariant() -> None:
    assert broken_invariants(_sound()) == []


@pytest.mark.parametrize("doctor", DOCTORED, ids=lambda doctor: doctor.__name__.strip("_"))
def test_invariant_finds_a_doctored_history(doctor: Callable[[History], None]) -> None:
    history = _sound()
    doctor(history)
    [broken] = broken_invariants(history)
    assert (broken.invariant, broken.part) == DOCTORED[doctor]
    assert str(broken).startswith(f"{broken.invariant}: {broken.part}: ")


def test_each_invariant_has_a_doctored_history() -> None:
    assert {invariant for invariant, _ in DOCTORED.values()} == set(INVARIANTS)


def test_audit_of_rows_finds_that_aborted_records_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProducerStates, "aborted_between", lambda *_: ())
    name = "none/newest/transactional/none/memory/unchanged/none/none/none"
    history = run_row(parse_row(name), 1)
    audit_rows({name: history})
    assert {(one.invariant, one.part) for one in broken_invariants(history)} == {
        ("audit has no violation", "log")
    }
    assert "aborted_read" in " ".join(history.anomalies)
