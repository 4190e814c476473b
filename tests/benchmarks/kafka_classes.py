"""Kafka's own timer and purgatory, in Java, as a rival in the same run.

A Java process does what it is asked for line by line, so that its turns are taken among ours; it is
warmed up first. Figures are the processor's time of its working thread, without its collector's and
its compiler's threads. Where there is no Java 17, or where Kafka's jars can't be fetched, there is
no such rival, and one line says why.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.measurement import Size, say

_SOURCE = Path(__file__).parents[1] / "recorded" / "java" / "KafkaCosts.java"
_WARM_UP = 4
"""Rounds before the first that counts: from then on the compiled code is the same."""


class KafkaClasses:
    """The running process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def events_ns(self, count: int) -> dict[str, float]:
        """Return nanoseconds for each operation that waits on 3 keys and is completed."""
        return dict(zip(("event",), self._ask(f"events {count}"), strict=True))

    def timeouts_ns(self, count: int) -> dict[str, float]:
        """Return nanoseconds for each add, cancel, and add of a task that is made for it."""
        steps = ("add", "cancel", "make and add")
        return dict(zip(steps, self._ask(f"timeouts {count}"), strict=True))

    def warm_up(self, events: int, timeouts: int) -> None:
        """Let Java compile what is measured."""
        for _ in range(_WARM_UP):
            self.events_ns(events)
            self.timeouts_ns(timeouts)

    def _ask(self, line: str) -> list[float]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"Java ended at {line!r}")
        return [float(word) for word in answer.split()]


@contextmanager
def kafka_classes(size: Size) -> Iterator[KafkaClasses | None]:
    """Run Kafka's classes; None where they can't be."""
    try:
        command = _command(size)
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        say(f"Kafka's own classes: no figures, {error}")
        yield None
        return
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield KafkaClasses(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def _command(size: Size) -> list[str]:
    if size is Size.SMALL:
        raise RuntimeError("which a run in small leaves out")
    if shutil.which("javac") is None:
        raise RuntimeError("there is no javac of Java 17")
    # Here, since they bring much with them, which no other benchmark is to carry.
    from tests.recorded.real_kafka import RealKafkaError, fetch_jars
    from tests.recorded.recordings import NEWEST

    try:
        jars = fetch_jars(NEWEST)
    except RealKafkaError as error:
        raise RuntimeError(str(error)) from None
    compiled = jars / "costs"
    subprocess.run(
        ["javac", "-cp", f"{jars}/*", "-d", str(compiled), str(_SOURCE)],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return ["java", "-Xmx1500m", "-cp", f"{jars}/*:{compiled}", "KafkaCosts"]
