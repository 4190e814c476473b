"""Random programs of Kafka's own purgatory and timing wheel beside ours, in virtual time.

    python -m tests.recorded.purgatory_beside_kafkas --seed 7 --steps 200000

Each step is a call; its result, what happened to operations and how many are delayed must be equal.
Operations that are due at the same millisecond may expire in either order: in Kafka a heap of
Java's decides. Three differences are meant, and no program makes them: ours looks once more before
an operation expires (so what makes one ready checks its keys at once), takes cancelled operations
from their other keys and the timer, and counts no completed operations as watched.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import click
import structlog

from purgatory import DelayedOperation, DelayedOperationPurgatory
from tests.recorded.real_kafka import RealKafkaError, fetch_jars
from tests.recorded.recordings import NEWEST
from timer import InlineExecutor, ManualClock, SystemTimer

_JAVA = Path(__file__).parent / "java"
_DELAYS_MS = (1, 5, 50, 1_000, 100_000)
_ADVANCES_MS = (0, 1, 3, 20, 500, 10_000)


class _Answer(NamedTuple):
    """The outcome of a call."""

    result: str
    events: Sequence[str]
    delayed: int


def random_calls(seed: int, steps: int) -> Iterator[str]:
    """Yield calls, each a line: what to call, and its arguments."""
    random, made = Random(seed), 0
    while made < steps:
        yield f"new {random.choice((1, 1_000))}"
        keys = [f"k{number}" for number in range(random.choice((1, 3, 10)))]
        added = 0
        for _ in range(random.choice((20, 200, 1_000))):
            made += 1
            draw = random.random()
            if draw < 0.4 or not added:
                added += 1
                watched = ",".join(random.sample(keys, random.randint(1, len(keys))))
                yield f"add {added} {random.choice(_DELAYS_MS)} {watched}"
            elif draw < 0.5:
                yield f"ready {random.randint(1, added)}"
                yield from (f"check {key}" for key in keys)
            elif draw < 0.7:
                yield f"check {random.choice(keys)}"
            elif draw < 0.76:
                yield f"force {random.randint(1, added)}"
            else:
                yield f"advance {random.choice(_ADVANCES_MS)}"


class _Ours:
    """Our purgatory, driven by the same lines."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.ready: set[int] = set()
        self._begin()

    def _begin(self) -> None:
        self.ready.clear()
        self._operations: dict[int, _Operation] = {}
        self._clock = ManualClock()
        self._timer = SystemTimer("judged", clock=self._clock, executor=InlineExecutor())
        self._purgatory: DelayedOperationPurgatory = DelayedOperationPurgatory(
            "judged", timer=self._timer, reaper_enabled=False
        )

    def call(self, line: str) -> _Answer:
        self.events.clear()
        result = self._call(*line.split(" "))
        return _Answer(result, tuple(self.events), self._purgatory.num_delayed)

    def _call(self, what: str, *arguments: str) -> str:
        if what == "new":
            self._begin()
        elif what == "add":
            number, delay_ms, keys = arguments
            operation = _Operation(self, int(number), int(delay_ms))
            self._operations[int(number)] = operation
            done = self._purgatory.try_complete_else_watch(operation, keys.split(","))
            return str(done).lower()
        elif what == "ready":
            self.ready.add(int(arguments[0]))
        elif what == "check":
            return str(self._purgatory.check_and_complete(arguments[0]))
        elif what == "force":
            return str(self._operations[int(arguments[0])].force_complete()).lower()
        else:
            self._clock.advance(int(arguments[0]))
            self._timer.advance_clock(0)
        return ""


class _Operation(DelayedOperation):
    def __init__(self, ours: _Ours, number: int, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self._ours = ours
        self.number = number

    def on_expiration(self) -> None:
        self._ours.events.append(f"expired{self.number}")

    def on_complete(self) -> None:
        self._ours.events.append(f"completed{self.number}")

    def try_complete(self) -> bool:
        return self.number in self._ours.ready and self.force_complete()


def _kafkas(calls: Sequence[str], version: str) -> Iterator[_Answer]:
    jars = fetch_jars(version)
    compiled = jars / "judged"
    sources = [str(file) for file in sorted(_JAVA.glob("*.java"))]
    subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(compiled), *sources], check=True)
    done = subprocess.run(
        ["java", "-cp", f"{jars}/*:{compiled}", "KafkaPurgatory"],
        input="\n".join(calls) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for line in done.stdout.splitlines():
        result, events, delayed = line.split("|")
        yield _Answer(result, tuple(events.split()), int(delayed))


def differing_steps(seed: int, steps: int) -> Iterator[str]:
    """Yield the steps whose answers differ by more than the order of one millisecond's."""
    calls = list(random_calls(seed, steps))
    ours = _Ours()
    for number, (line, theirs) in enumerate(zip(calls, _kafkas(calls, NEWEST), strict=True)):
        answer = ours.call(line)
        events = sorted(answer.events) == sorted(theirs.events)
        if not events or answer._replace(events=()) != theirs._replace(events=()):
            yield f"step {number}, {line}: theirs {theirs}, ours {answer}"


@click.command()
@click.option("--seed", default=1)
@click.option("--steps", default=200_000)
def main(seed: int, steps: int) -> None:
    """Compare the two."""
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        differing = list(differing_steps(seed, steps))
    except RealKafkaError as error:
        raise click.ClickException(str(error)) from None
    for line in differing[:20]:
        click.echo(line)
    click.echo(f"seed {seed}: {steps} steps, {len(differing)} differ")
    raise SystemExit(bool(differing))


if __name__ == "__main__":
    main()
