"""The interface of both drivers, and the responses to their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tests.wire.drivers.decisions import Decisions
from tests.wire.drivers.steps import ALL, Produce, Read, Step, Transact


class Driver(Protocol):
    """A cluster of three brokers, in virtual or in real time."""

    def take(self, step: Step) -> None:
        """Run a step, or begin it."""

    def settle(self, expected: Decisions | None = None) -> Decisions:
        """Wait until the cluster is at rest, and return its decisions.

        Args:
            expected: another driver's decisions. A driver in real time waits for these, and returns
                its own at its timeout.
        """


class Responses:
    """The responses to the steps that send a request, in the order of the steps."""

    def __init__(self) -> None:
        self._steps: list[Produce | Read | Transact | str] = []
        self._texts: list[str] = []

    def ask(self, step: Produce | Read | Transact | str) -> int:
        """Record that a step sends a request; return the step's number."""
        self._steps.append(step)
        self._texts.append("-")
        return len(self._texts) - 1

    def take(self, number: int, text: str) -> None:
        """Record the response to a step; a client ignores a second one."""
        if self._texts[number] == "-":
            self._texts[number] = text

    def refuse(self, what: str) -> None:
        """Record that a fault was refused."""
        self.take(self.ask(what), "refused")

    @property
    def texts(self) -> Sequence[str]:
        """All responses; "-" for those that are missing yet."""
        return [
            f"{_name_of(step)} {text}" for step, text in zip(self._steps, self._texts, strict=True)
        ]

    @property
    def acknowledged(self) -> Sequence[tuple[int, str]]:
        """The partition and the records of each produce acknowledged with acks=all."""
        return [
            (step.partition, step.letter * step.records)
            for step, text in zip(self._steps, self._texts, strict=True)
            if isinstance(step, Produce) and step.acks == ALL and text.startswith("NONE")
        ]


def _name_of(step: Produce | Read | Transact | str) -> str:
    match step:
        case Transact(asks=asks, producer=producer):
            return f"{producer} {asks}"
        case Produce(letter=letter):
            return letter
        case Read():
            return "read"
    return step
