"""What both drivers of the model can be told, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tests.drivers.decisions import Decisions
from tests.drivers.steps import ALL, Produce, Read, Step, Transact


class Driver(Protocol):
    """A cluster of three brokers, however its time passes and its messages travel."""

    def take(self, step: Step) -> None:
        """Have a step happen, or begin."""

    def settle(self, expected: Decisions | None = None) -> Decisions:
        """Let it come to rest, and say what was decided.

        Args:
            expected: what another driver decided. Where it takes real time, it is waited for this;
                what is there at the end of all patience is returned.
        """


class Answers:
    """The answers of the steps that ask something, in the order of the steps."""

    def __init__(self) -> None:
        self._steps: list[Produce | Read | Transact | str] = []
        self._texts: list[str] = []

    def ask(self, step: Produce | Read | Transact | str) -> int:
        """Note that a step asks; return its number."""
        self._steps.append(step)
        self._texts.append("-")
        return len(self._texts) - 1

    def take(self, number: int, text: str) -> None:
        """Take the answer of a step; a second one is no use to a client."""
        if self._texts[number] == "-":
            self._texts[number] = text

    def refuse(self, what: str) -> None:
        """Note that something could not begin."""
        self.take(self.ask(what), "refused")

    @property
    def texts(self) -> Sequence[str]:
        """All of them: "-" where none came yet."""
        return [
            f"{_name_of(step)} {text}" for step, text in zip(self._steps, self._texts, strict=True)
        ]

    @property
    def acknowledged(self) -> Sequence[tuple[int, str]]:
        """The partition and the records of each produce that all in sync have, as was said."""
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
