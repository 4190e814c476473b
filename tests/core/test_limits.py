"""How many may wait: a refusal that says so, and that counts."""

from __future__ import annotations

import threading

import pytest

from purgatory import DelayedOperationPurgatory, Outcome, PurgatoryFullError
from purgatory.core.callback_chain import LONGEST_CHAIN
from tests.core.probe import Logs, Probe


def full_purgatory(limit: int) -> tuple[DelayedOperationPurgatory, list[Probe]]:
    purgatory = DelayedOperationPurgatory("Produce", reaper_enabled=False, max_pending=limit)
    probes = [Probe() for _ in range(limit)]
    for probe in probes:
        assert not purgatory.try_complete_else_watch(probe, ["key"])
    return purgatory, probes


def test_one_too_many_is_refused_counted_and_logged_and_leaves_nothing(logs: Logs) -> None:
    purgatory, _ = full_purgatory(3)
    refused = Probe()
    with pytest.raises(PurgatoryFullError, match=r"'Produce' is full: max_pending=3 .* <Probe"):
        purgatory.try_complete_else_watch(refused, ["key", "other"])
    assert refused.outcome is Outcome.CANCELLED
    assert refused.finished == []
    assert (purgatory.num_delayed, purgatory.watched, purgatory.watched_keys) == (3, 3, 1)
    assert purgatory.counters.outcomes["rejected"] == 1
    assert purgatory.counters.outcomes["cancelled"] == 0
    assert [entry["event"] for entry in logs] == ["purgatory_full"]
    purgatory._check()


def test_a_flood_is_logged_once_a_second(logs: Logs) -> None:
    purgatory, _ = full_purgatory(1)
    for _ in range(100):
        with pytest.raises(PurgatoryFullError):
            purgatory.try_complete_else_watch(Probe(), ["key"])
    assert purgatory.counters.outcomes["rejected"] == 100
    assert 1 <= len(logs) < 20


def test_what_completes_at_once_needs_no_place() -> None:
    purgatory, _ = full_purgatory(1)
    assert purgatory.try_complete_else_watch(Probe(ready=True), ["key"])


def test_who_is_being_checked_first_takes_no_place() -> None:
    purgatory = DelayedOperationPurgatory("Produce", reaper_enabled=False, max_pending=1)
    waiting = Probe()
    first = Probe(
        ready=True,
        hooks={"try_complete": lambda: purgatory.try_complete_else_watch(waiting, ["key"])},
    )
    assert purgatory.try_complete_else_watch(first, ["key"])
    assert waiting.outcome is Outcome.PENDING
    with pytest.raises(PurgatoryFullError):
        purgatory.try_complete_else_watch(Probe(), ["key"])


def test_a_refusal_deep_in_a_chain_is_counted_as_one() -> None:
    purgatory, _ = full_purgatory(1)

    def submit_deeper(depth: int) -> None:
        if depth == 2 * LONGEST_CHAIN:
            with pytest.raises(PurgatoryFullError):
                purgatory.try_complete_else_watch(Probe(), ["key"])
        else:
            deeper = Probe(ready=True, hooks={"on_complete": lambda: submit_deeper(depth + 1)})
            purgatory.try_complete_else_watch(deeper, ["key"])

    submit_deeper(0)
    counted = {name: count for name, count in purgatory.counters.outcomes.items() if count}
    assert counted == {"immediate": 2 * LONGEST_CHAIN, "rejected": 1}


def test_a_place_that_is_free_is_taken_again() -> None:
    purgatory, (first,) = full_purgatory(1)
    first.force_complete()
    assert not purgatory.try_complete_else_watch(Probe(), ["key"])


def test_many_threads_never_go_beyond_the_limit() -> None:
    purgatory = DelayedOperationPurgatory("Produce", reaper_enabled=False, max_pending=10)
    most, refused = [0], [0]

    def submit() -> None:
        for _ in range(300):
            probe = Probe()
            try:
                purgatory.try_complete_else_watch(probe, ["key"])
            except PurgatoryFullError:
                refused[0] += 1
            else:
                most[0] = max(most[0], purgatory.watched)
                probe.force_complete()

    threads = [threading.Thread(target=submit) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most[0] <= 10
    assert purgatory.num_delayed == purgatory.watched == 0
    purgatory._check()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=f"max_pending must be at least 1, .*: {limit}"):
        DelayedOperationPurgatory("Produce", reaper_enabled=False, max_pending=limit)
