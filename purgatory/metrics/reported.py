"""A purgatory that is reported: under which label, and with what names."""

from __future__ import annotations

import weakref

from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.metrics.kafka_names import KafkaExpiries
from timer import SystemTimer


class Reported:
    """One purgatory and its label. The purgatory is held weakly.

    Args:
        purgatory: what is reported.
        label: the value of the label ``purgatory``; by default its name.
        broker: the value of the label ``broker``; None leaves it out.

    Raises:
        TypeError: the label, or the timer's name, is no string.
        ValueError: it can't be written as UTF-8.
    """

    def __init__(
        self,
        purgatory: DelayedOperationPurgatory | AsyncPurgatory,
        label: str | None,
        broker: int | None = None,
    ) -> None:
        core = core_of(purgatory)
        self.purgatory = weakref.ref(core)
        self.label = _checked_label("label", core.name if label is None else label)
        self.broker = () if broker is None else (str(broker),)
        self.owns_timer = core.owns_timer or isinstance(purgatory, AsyncPurgatory)
        if not self.owns_timer and isinstance(core.timer, SystemTimer):
            _checked_label("timer's name", core.timer.name)
        self.kafka_expiries: KafkaExpiries | None = None

    @property
    def name(self) -> tuple[str, ...]:
        """What no other of its registry has: the label, and the broker's if there is one."""
        return (self.label, *self.broker)

    def report_kafka_names(self, wanted: bool) -> None:
        """Report it under Kafka's names too, from now on, if that is wanted."""
        if wanted and self.kafka_expiries is None:
            core = self.purgatory()
            assert core is not None, "who registers it holds it"
            self.kafka_expiries = KafkaExpiries(core)


def _checked_label(what: str, label: object) -> str:
    """Return ``label``, since one that can't be written would break every scrape."""
    if not isinstance(label, str):
        raise TypeError(f"the {what} must be a string, not {label!r} ({type(label).__name__})")
    try:
        label.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the {what} can't be written as UTF-8: {label!r}, {error}") from None
    return label


def core_of(purgatory: DelayedOperationPurgatory | AsyncPurgatory) -> DelayedOperationPurgatory:
    """Return what holds the operations."""
    return purgatory.core if isinstance(purgatory, AsyncPurgatory) else purgatory
