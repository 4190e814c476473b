"""The invariants that hold in each row, whatever features meet in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from tests.world.history import Exchange, History, Offset

ANSWERED_WITHIN_S: Final = 45.0
"""The longest wait of a row's requests, a rebalance, with a margin."""


class Broken(NamedTuple):
    """A violation.

    Args:
        invariant: a name of `INVARIANTS`.
        part: the part of the product that broke it.
        text: what happened.
    """

    invariant: str
    part: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.part}: {self.text}"


Found = Iterator[tuple[str, str]]
"""The parts of the product, and what happened."""


def broken_invariants(history: History) -> list[Broken]:
    """Return all violations of a history."""
    return [
        Broken(name, part, text)
        for name, check in INVARIANTS.items()
        for part, text in check(history)
    ]


def _audit_has_no_violation(history: History) -> Found:
    for text in history.anomalies:
        yield "log", text
    if not history.acknowledged:
        yield "log", "nothing was acknowledged, so that nothing is shown"


def _requests_are_answered(history: History) -> Found:
    for exchange in history.exchanges:
        ended_s = history.ended_s if exchange.ended_s is None else exchange.ended_s
        late_s = ended_s - exchange.began_s - ANSWERED_WITHIN_S - _paused_s(history, exchange)
        if late_s > 0:
            end = "had no answer" if exchange.ended_s is None else "had its end"
            yield (
                f"broker {exchange.broker}",
                f"{exchange.api} of {exchange.client} from {exchange.began_s:.1f} s {end} "
                f"at {ended_s:.1f} s",
            )


def _paused_s(history: History, exchange: Exchange) -> float:
    return sum(
        end_s - begin_s for broker, begin_s, end_s in history.paused if broker == exchange.broker
    )


def _members_keep_partitions(history: History) -> Found:
    for one in history.expelled:
        silent_s = one.told_s - one.heard_s
        if silent_s < one.session_s:
            yield (
                f"{one.group_type} group coordinator",
                f"{one.member} was told {one.error} at {one.told_s:.1f} s, {silent_s:.1f} s after "
                f"it was heard, and its session is {one.session_s:g} s",
            )


def _preferred_leaders_lead(history: History) -> Found:
    for one in history.leaderships:
        if one.leader != one.preferred:
            yield (
                "controller",
                f"broker {one.leader} leads {one.partition}, and broker {one.preferred} is its "
                "preferred leader",
            )


def _offsets_never_go_back(history: History) -> Found:
    by_partition: dict[tuple[object, ...], list[Offset]] = defaultdict(list)
    for one in sorted(history.offsets, key=lambda offset: offset.told_s):
        earlier = by_partition[one.group, one.partition]
        known = max(
            (before for before in earlier if before.told_s <= one.began_s),
            key=lambda before: before.offset,
            default=None,
        )
        if known is not None and one.offset < known.offset:
            verb = "committed" if one.is_commit else "fetched"
            yield (
                "group offsets",
                f"{one.offset} was {verb} at {one.told_s:.1f} s of {one.partition} in "
                f"{one.group}, which had {known.offset} at {known.told_s:.1f} s",
            )
        earlier.append(one)


def _epochs_rise(history: History) -> Found:
    last: dict[tuple[str, str], tuple[int, str]] = {}
    for one in history.epochs:
        key = (one.kind, one.name)
        epoch, holder = last.get(key, (one.epoch, one.holder))
        if one.epoch < epoch:
            text = f"{one.name} went from epoch {epoch} to {one.epoch} at {one.told_s:.1f} s"
            yield _EPOCH_PARTS[one.kind], text
        elif one.epoch == epoch and one.holder != holder:
            text = f"{one.name} has epoch {epoch} of {holder} and, later, of {one.holder}"
            yield _EPOCH_PARTS[one.kind], text
        last[key] = max((epoch, holder), (one.epoch, one.holder), key=lambda known: known[0])


_EPOCH_PARTS: Final[Mapping[str, str]] = {
    "leader": "controller",
    "producer": "transaction coordinator",
    "generation": "classic group coordinator",
    "member": "consumer group coordinator",
}


def _descriptions_agree(history: History) -> Found:
    for one in history.descriptions:
        if one.told != one.described:
            yield one.part, f"{one.subject}: told {one.told}, described as {one.described}"


def _throttled_clients_wait(history: History) -> Found:
    if history.throttled_s == 0:
        yield "quotas", "no client was throttled, so that nothing is shown"
    for one in history.served_early:
        yield (
            f"broker {one.broker}",
            f"{one.client} was served at {one.served_s:.3f} s, and throttled until "
            f"{one.throttled_until_s:.3f} s",
        )


def _restart_changes_nothing(history: History) -> Found:
    for name in sorted({*history.before, *history.after}):
        before, after = history.before.get(name), history.after.get(name)
        if before != after:
            yield name.split(": ")[0], f"{name.split(': ')[-1]}: {before} before, {after} after"


INVARIANTS: Final[Mapping[str, Callable[[History], Found]]] = {
    "audit has no violation": _audit_has_no_violation,
    "requests are answered or cut": _requests_are_answered,
    "members keep partitions in their session": _members_keep_partitions,
    "preferred leaders lead": _preferred_leaders_lead,
    "committed offsets never go back": _offsets_never_go_back,
    "epochs rise": _epochs_rise,
    "descriptions agree with what was told": _descriptions_agree,
    "throttled clients wait": _throttled_clients_wait,
    "restart changes nothing": _restart_changes_nothing,
}
"""By name, in words of the product."""
