"""Shrinking of a failure in a world, by delta debugging (Zeller and Hildebrandt's ddmin).

The failed test is run again, in this process, with fewer faults, on a plain network, and with fewer
deviations from first in, first out, as long as it fails in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, TypeVar

from purgatory.virtual.errors import WorldError
from purgatory.virtual.failure_report import RepeatedTest, WorldFailure
from purgatory.virtual.schedules import FIFO, format_deviations

T = TypeVar("T")


def ddmin(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Iterator[Sequence[T]]:
    """Yield ever smaller parts of a list that still fail.

    The last part is 1-minimal: without any single one of its items it does not fail. Exceptions of
    ``fails`` propagate. No part is tested twice; n items take at most O(n²) tests, and O(log n) if
    a single one causes the failure.

    Args:
        items: unique items that fail together.
        fails: whether a part, in this order, fails.
    """
    passing: set[tuple[T, ...]] = set()

    def is_new_failure(part: tuple[T, ...]) -> bool:
        if part in passing:
            return False
        if fails(part):
            return True
        passing.add(part)
        return False

    failing, count = tuple(items), 2
    if failing and is_new_failure(()):
        yield ()
        return
    while len(failing) > 1:
        pieces = _chunks(failing, count)
        complements = [_without(failing, chunk) for chunk in pieces] if count > 2 else []
        smaller = next((part for part in [*pieces, *complements] if is_new_failure(part)), None)
        if smaller is not None:
            count = 2 if smaller in pieces else count - 1
            failing = smaller
            yield failing
        elif count == len(failing):
            return
        else:
            count = min(2 * count, len(failing))


def _chunks(items: tuple[T, ...], count: int) -> list[tuple[T, ...]]:
    """Split into `count` nonempty pieces whose lengths differ by at most one."""
    ends = [len(items) * number // count for number in range(count + 1)]
    return [items[begin:end] for begin, end in pairwise(ends)]


def _without(items: tuple[T, ...], chunk: tuple[T, ...]) -> tuple[T, ...]:
    excluded = set(chunk)
    return tuple(item for item in items if item not in excluded)


Attempt = Callable[[RepeatedTest], WorldFailure | None]
"""Runs a test, and returns its failure; None: it passed."""

MAX_ATTEMPTS: Final = 300
_SHIFTS: Final = (-1, 1, -2, 2)
_MAX_LISTED_DEVIATIONS: Final = 100
"""The most deviations in a command, which otherwise has the schedule's name, and the seed."""


_NO_SMALLER: Final = "no smaller failure was found"


class NotReproducedError(WorldError):
    """The unchanged test did not fail in the same way again; the message has its outcome."""


class AttemptsError(WorldError):
    """There is no attempt left."""


class Shrinking:
    """Makes one failure smaller.

    Args:
        original: the failure.
        attempt: runs the test again. Its exceptions propagate.
        max_attempts: the limit of attempts.
    """

    def __init__(
        self, original: WorldFailure, attempt: Attempt, max_attempts: int = MAX_ATTEMPTS
    ) -> None:
        self.original = original
        self.smallest = original
        self.attempts = 0
        self.interrupted = False
        """Whether Ctrl-C ended the search."""
        self._attempt = attempt
        self._max_attempts = max_attempts

    def run(self) -> str:
        """Return the text for the report: the smallest failure, if any, and how it was found."""
        end = ""
        try:
            self.shrink()
        except NotReproducedError as error:
            return _not_reproduced(error)
        except AttemptsError:
            limit = self._max_attempts
            end = f", and no more: --virtual-shrink-attempts {5 * limit} looks further"
        except KeyboardInterrupt:
            self.interrupted = True
            end = ", then it was interrupted"
        text = f"{self.attempts} attempt{'' if self.attempts == 1 else 's'}{end}"
        summary = f"{_summary(self.original, self.smallest)} ({text})"
        return f"{summary}\n{self.smallest.report}" if self.is_smaller else summary

    @property
    def is_smaller(self) -> bool:
        """Whether a smaller failure was found."""
        return _summary(self.original, self.smallest) != _NO_SMALLER

    def shrink(self) -> None:
        """Find ever smaller failures.

        Raises:
            NotReproducedError: the unchanged test did not fail in the same way.
            AttemptsError: there was no attempt left.
        """
        self._reproduce()
        self._shrink_faults()
        if self.smallest.uses_network and not self.smallest.test.plain_network:
            self._fails(replace(self.smallest.test, plain_network=True))
        self._shrink_schedule()

    def _reproduce(self) -> None:
        failure = self._next_attempt(self.original.test)
        if failure is None:
            raise NotReproducedError("the test passed")
        if failure.kind != self.original.kind:
            raise NotReproducedError(
                f"another failure came: {failure.kind}, and not {self.original.kind}"
            )
        self.smallest = failure

    def _next_attempt(self, test: RepeatedTest) -> WorldFailure | None:
        if self.attempts == self._max_attempts:
            raise AttemptsError("there is no attempt left")
        self.attempts += 1
        return self._attempt(test)

    def _fails(self, test: RepeatedTest) -> bool:
        failure = self._next_attempt(test)
        if failure is None or failure.kind != self.original.kind:
            return False
        self.smallest = failure
        return True

    def _shrink_faults(self) -> None:
        original = self.original
        excluded = set(original.test.without)
        faults: Sequence[int] = sorted({*range(original.planned_faults)} - excluded)

        def fails_with(part: Sequence[int]) -> bool:
            without = {*excluded, *range(original.planned_faults)} - set(part)
            return self._fails(replace(original.test, without=sorted(without)))

        # Exclude faults that had not begun, lest they begin in a longer run.
        if len(original.begun_faults) < len(faults) and fails_with(original.begun_faults):
            faults = original.begun_faults
        for _ in ddmin(faults, fails_with):
            pass

    def _shrink_schedule(self) -> None:
        if self.smallest.test.schedule == FIFO:
            return
        deviations: Mapping[int, int] = self.smallest.deviations
        test = self.smallest.test

        def fails_with(choices: Sequence[int]) -> bool:
            part = {choice: deviations[choice] for choice in choices}
            return self._fails(replace(test, schedule=format_deviations(part)))

        named = self.smallest
        if fails_with(sorted(deviations)):  # a list in place of the schedule's name
            try:
                for _ in ddmin(sorted(deviations), fails_with):
                    pass
                while self._shrink_by_a_shift():
                    pass
            finally:
                if len(self.smallest.deviations) > _MAX_LISTED_DEVIATIONS:
                    self.smallest = named

    def _shrink_by_a_shift(self) -> bool:
        """Find a failure with one deviation less, and return whether there was one.

        Later deviations are shifted by a choice or two, since each may have compensated for the
        one that is removed.
        """
        smallest = self.smallest
        for left_out in sorted(smallest.deviations)[:-1]:
            for shift in _SHIFTS:
                part = {
                    max(choice + shift * (choice > left_out), 0): index
                    for choice, index in smallest.deviations.items()
                    if choice != left_out
                }
                test = replace(smallest.test, schedule=format_deviations(part))
                if self._fails(test) and len(self.smallest.deviations) < len(smallest.deviations):
                    return True
                self.smallest = smallest
        return False


def _summary(original: WorldFailure, smallest: WorldFailure) -> str:
    """Describe how a failure was shrunk."""
    planned, remaining = (
        failure.planned_faults - len(failure.test.without) for failure in (original, smallest)
    )
    became_plain = smallest.test.plain_network and not original.test.plain_network
    before, after = len(original.deviations), len(smallest.deviations)
    has_schedule = original.test.schedule != FIFO
    if remaining == planned and not became_plain and (not has_schedule or before == after):
        return _NO_SMALLER
    causes = [f"with {remaining or 'none'} of {planned} faults"] if planned else []
    if became_plain:
        causes.append("on a plain network")
    if has_schedule:
        causes.append(f"with {after or 'none'} of {before} deviations from first in, first out")
    return f"it fails {', '.join(causes)}, too"


def _not_reproduced(error: Exception) -> str:
    return (
        f"not reproduced: repeated in the same process, {error}.\n"
        "Something besides the seed decides the outcome: state that earlier runs left in this "
        "process or in files, or chance or a clock that is not the world's."
    )
