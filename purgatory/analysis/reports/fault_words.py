"""Faults of a run in words: what was made to go wrong, and what of it was in force when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from purgatory.analysis.reports.severity import Said, Severity
from purgatory.analysis.result_rows import Row

_MOST_NAMED = 3
_SHORT_RUN_US = 2_000_000
_RIGHT_AFTER_US = 500_000
_STATES: Mapping[str, str] = {
    "stall_follower": "the follower on {broker} was stalled",
    "slow_follower": "the follower on {broker} was slow",
    "kill": "{broker} was dead",
    "pause": "{broker} was paused",
    "cut_link": "a link between brokers was cut",
    "lose_requests": "requests got lost",
    "lose_responses": "responses of {broker} got lost",
    "delay_responses": "responses of {broker} were late",
    "refuse_produces": "{broker} refused produces",
}
_LAGGING = {"stall_follower", "slow_follower"}


def seconds(run: Row, time_us: float) -> str:
    """A time of a run, as exact as helps to find it there."""
    digits = 3 if run["duration_us"] < _SHORT_RUN_US else 1
    return f"{time_us / 1e6:,.{digits}f} s"


def faults_during(run: Row, from_us: int, until_us: int) -> tuple[str, str]:
    """The faults that were in force at some time between two, and what is known of them then.

    Returns:
        Both as text, empty where there is nothing to say: ", while broker 2 was dead (4.0 s to
        8.0 s)", and a sentence of its own. Faults that were in force for less than half of that
        time are said to have been so for a part of it.
    """
    found = [
        fault
        for fault in run["faults"]
        if fault["at_ms"] * 1000 <= until_us and from_us <= _end_us(run, fault)
    ]
    named = [_with_times(run, fault) for fault in found[:_MOST_NAMED]]
    more = len(found) - _MOST_NAMED
    named += [f"{more:,} other faults were in force"] if more > 0 else []
    why = ""
    if found and all(fault["kind"] in _LAGGING for fault in found):
        why = "A produce waits for in-sync replicas alone: the follower still counted as one."
    if not named:
        return "", ""
    begun_us = max(from_us, min(fault["at_ms"] * 1000 for fault in found))
    over_us = min(until_us, max(_end_us(run, fault) for fault in found))
    whole = 2 * (over_us - begun_us) >= until_us - from_us
    return f"{', while' if whole else '; in a part of that time'} {' and '.join(named)}", why


def fault_right_after(run: Row, time_us: int) -> str:
    """What began within half a second after a time: ", right before broker 2 was dead (...)".

    What was lost when a leader died had been acknowledged before.
    """
    for fault in run["faults"]:
        if 0 < fault["at_ms"] * 1000 - time_us <= _RIGHT_AFTER_US:
            return f", right before {_with_times(run, fault)}"
    return ""


def faults_said(run: Row, said: Sequence[Said]) -> list[Said]:
    """A sentence on the faults that no other sentence names."""
    told = [_with_times(run, fault) for fault in run["faults"]]
    new = [one for one in told if not any(one in other.text for other in said)]
    if not new:
        return []
    more = f", and {len(new) - _MOST_NAMED:,} more faults" if len(new) > _MOST_NAMED else ""
    text = f"{'; '.join(new[:_MOST_NAMED])}{more}."
    return [Said(text[0].upper() + text[1:], Severity.NOTE, "faults", "runs")]


def fault_in_words(fault: Row) -> str:
    """A fault: what, of whom, from when until when."""
    of_broker = "" if fault["broker"] is None else f" of broker {fault['broker']}"
    text = f"{fault['kind']}{of_broker} from {fault['at_ms'] / 1000:,.3f} s"
    if fault["duration_ms"] is not None:
        text += f" to {(fault['at_ms'] + fault['duration_ms']) / 1000:,.3f} s"
    return text


def _with_times(run: Row, fault: Row) -> str:
    broker = "all brokers" if fault["broker"] is None else f"broker {fault['broker']}"
    state = _STATES.get(fault["kind"])
    if state is None:
        whose = "" if fault["broker"] is None else f" of {broker}"
        state = f"the fault {fault['kind']}{whose} was in force"
    start = seconds(run, fault["at_ms"] * 1000)
    if fault["duration_ms"] is None:
        return f"{state.format(broker=broker)} (from {start} on)"
    return f"{state.format(broker=broker)} ({start} to {seconds(run, _end_us(run, fault))})"


def _end_us(run: Row, fault: Row) -> int:
    if fault["duration_ms"] is None:
        return int(run["duration_us"])
    return int((fault["at_ms"] + fault["duration_ms"]) * 1000)
