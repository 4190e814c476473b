"""A purgatory that is reported: under which label, and with what names."""

from __future__ import annotations

import weakref

from purgatory.async_purgatory import AsyncPurgatory
from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.metrics.kafka_names import KafkaExpiries


class Reported:
    """One purgatory and its label. The purgatory is held weakly.

    Args:
        purgatory: what is reported.
        label: the value of the label ``purgatory``; by default its name.
        kafka_names: whether it is reported under Kafka's names too.
        broker: the value of the label ``broker``; None leaves it out.
    """

    def __init__(
        self,
        purgatory: DelayedOperationPurgatory | AsyncPurgatory,
        label: str | None,
        kafka_names: bool,
        broker: int | None = None,
    ) -> None:
        core = core_of(purgatory)
        self.purgatory = weakref.ref(core)
        self.label = core.name if label is None else label
        self.broker = () if broker is None else (str(broker),)
        self.owns_timer = core.owns_timer or isinstance(purgatory, AsyncPurgatory)
        self.kafka_expiries: KafkaExpiries | None = None
        self.report_kafka_names(kafka_names)

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


def core_of(purgatory: DelayedOperationPurgatory | AsyncPurgatory) -> DelayedOperationPurgatory:
    """Return what holds the operations."""
    return purgatory.core if isinstance(purgatory, AsyncPurgatory) else purgatory
