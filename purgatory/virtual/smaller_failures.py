"""Looks for the least that a failure needs: few faults, and a simple network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from purgatory.virtual.delta_debugging import ever_smaller
from purgatory.virtual.errors import WorldError
from purgatory.virtual.repeated_test import RepeatedTest
from purgatory.virtual.world_failure import WorldFailure

Attempt = Callable[[RepeatedTest], WorldFailure | None]
"""Runs a test, and returns how it failed; None: it did not."""


class NotReproducedError(WorldError):
    """A failure did not come again when its test was repeated unchanged; says what came."""


def smaller_failures(
    found: WorldFailure, attempt: Attempt, repetitions: int = 1
) -> Iterator[WorldFailure]:
    """Yield a failure as it comes again, and then ever smaller ones of its kind.

    Whoever stops asking has the smallest so far. What ``attempt`` raises ends it.

    Args:
        found: the failure.
        attempt: runs a test.
        repetitions: how often the test is repeated unchanged before it counts as not reproduced.

    Raises:
        NotReproducedError: it did not come again.
    """
    best = _repeated(found, attempt, repetitions)
    yield best

    def fails(test: RepeatedTest) -> bool:
        nonlocal best
        failure = attempt(test)
        if failure is None or failure.kind != found.kind:
            return False
        best = failure
        return True

    def fails_with(kept: Sequence[int]) -> bool:
        left_out = {*found.test.without, *range(found.planned)} - set(kept)
        return fails(replace(found.test, without=sorted(left_out)))

    faults: Sequence[int] = sorted({*range(found.planned)} - set(found.test.without))
    # What had not begun by then is out of the way, lest it begin in a run that goes on for longer.
    if len(found.begun) < len(faults) and fails_with(found.begun):
        faults = found.begun
        yield best
    for _ in ever_smaller(faults, fails_with):
        yield best
    if not found.test.plain_network and fails(replace(best.test, plain_network=True)):
        yield best


def _repeated(found: WorldFailure, attempt: Attempt, repetitions: int) -> WorldFailure:
    for _ in range(repetitions):
        failure = attempt(found.test)
        if failure is not None and failure.kind == found.kind:
            return failure
    if failure is None:
        raise NotReproducedError("the test passed")
    raise NotReproducedError(f"another failure came: {failure.kind}, and not {found.kind}")
