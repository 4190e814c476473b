"""The common part of the benchmarks: figures, and their fair measurement.

Each benchmark is a module of this folder that

* has ``def measure(size: Size = Size.USUAL) -> list[Figure]``;
* ends with ``if __name__ == "__main__": run_alone(measure)``, so that
  ``python -m tests.benchmarks.NAME [--full]`` (from the top of the repository) prints its table,
  and ``--json`` the figures alone, for ``run.py``;
* prints what else it has to say with ``say``;
* is listed in ``run.py``, which gives each its own process.

Work on one thread is measured in the processor's time (``time.thread_time``): on an idle machine
the time by the clock, and on a busy one nearly the same. Waits are measured by the clock, and need
an idle machine.

A target that a user would notice is a ratio to a rival measured in the same run, in turns with it,
since a machine's speed differs from minute to minute.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import gc
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeVar

import structlog

T = TypeVar("T")


class Size(enum.Enum):
    """The amount to measure."""

    SMALL = "small"
    """Runs through in a fraction of a second; its figures mean nothing. For the test."""
    USUAL = "usual"
    """The size of the figures in the documents."""
    FULL = "full"
    """The usual, and what takes minutes or gigabytes more."""

    def pick(self, small: T, usual: T, full: T | None = None) -> T:
        """Return the argument for this size; ``usual`` for FULL where there is no other."""
        if self is Size.SMALL:
            return small
        return usual if self is Size.USUAL or full is None else full


@dataclass(frozen=True)
class Figure:
    """One measured number, and what it was meant to be.

    Args:
        name: what was measured, in a few words.
        value: the number.
        unit: of the value and the target; "x" for a ratio.
        target: the worst value that is good enough; None where there is no target.
        better: whether a lower or a higher value is better.
    """

    name: str
    value: float
    unit: str
    target: float | None = None
    better: Literal["lower", "higher"] = "lower"

    @property
    def met(self) -> bool | None:
        """Whether the value is as good as the target; None where there is none."""
        if self.target is None:
            return None
        return self.value <= self.target if self.better == "lower" else self.value >= self.target


def say(text: str) -> None:
    """Print a line beside the figures."""
    print(text, file=sys.stderr, flush=True)


def table(figures: Sequence[Figure], width: int = 0) -> str:
    """Return one line per figure: name (of at least this width), value, target, whether met."""
    width = max(width, *(len(figure.name) for figure in figures))
    return "\n".join(_line(figure, width) for figure in figures)


def _line(figure: Figure, width: int) -> str:
    line = f"{figure.name:<{width}}  {_number(figure.value):>9} {figure.unit:<7}"
    if figure.target is None:
        return line.rstrip()
    bound = "at most" if figure.better == "lower" else "at least"
    met = "met" if figure.met else "NOT MET"
    return f"{line} {bound:<8} {_number(figure.target):>7}  {met}"


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@contextmanager
def collector_off() -> Iterator[None]:
    """Keep the garbage collector out of the measurement, for all contenders alike.

    Live objects are frozen and none is collected meanwhile: else the contender that happens to
    cross the collector's threshold pays for the objects of all.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def seconds(function: Callable[[], object]) -> float:
    """Return how much of the processor's time one call takes, on this thread.

    On an idle machine that is the time by the clock; on a busy one, waiting for a turn isn't
    counted.
    """
    start = time.thread_time()
    function()
    return time.thread_time() - start


def in_turns(
    contenders: Mapping[str, Callable[[], Mapping[str, float]]], rounds: int
) -> dict[str, dict[str, float]]:
    """Run each contender once per round, and return the medians of what each measured.

    The order is reversed in every other round, so that none always follows the same neighbour.
    """
    measured: dict[str, list[Mapping[str, float]]] = {name: [] for name in contenders}
    for number in range(rounds):
        names = list(contenders)
        for name in names if number % 2 == 0 else reversed(names):
            measured[name].append(contenders[name]())
    return {
        name: {key: median(turn[key] for turn in turns) for key in turns[0]}
        for name, turns in measured.items()
    }


def run_alone(measure: Callable[[Size], list[Figure]]) -> None:
    """Be the command line of one benchmark."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--full", action="store_true", help="measurements that take minutes, too")
    parser.add_argument("--small", action="store_true", help="only see whether it runs")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    size = Size.SMALL if options.small else Size.FULL if options.full else Size.USUAL
    # A purgatory that closes says so; here that would only be noise.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    figures = measure(size)
    if options.json:
        print(json.dumps([dataclasses.asdict(figure) for figure in figures]))
    else:
        print(table(figures))
