"""The arrivals of a recorded log, at a group of producers."""

from __future__ import annotations

from collections.abc import Sequence

from purgatory.simulation.arrivals import Arrivals
from purgatory.simulation.engine import Engine
from purgatory.simulation.producer import Producer
from purgatory.simulation.producer_group import ProducerGroup
from purgatory.simulation.transactional_producer import TransactionalProducer


def play(
    engine: Engine,
    group: ProducerGroup,
    producers: Sequence[Producer] | Sequence[TransactionalProducer],
    log: Arrivals,
    end_ns: int,
) -> None:
    """Let the rows of a log arrive, in turn at a group's producers; one event at a time.

    Args:
        engine: makes them happen.
        group: tells the sizes of those that have none in the log.
        producers: of the group.
        log: what arrives when.
        end_ns: nothing arrives from then on, in virtual nanoseconds.
    """
    times, sizes = log.times_ns, log.sizes

    def arrive(index: int) -> None:
        producers[index % len(producers)].arrive(
            group.next_size() if sizes is None else sizes[index]
        )
        index += 1
        if index < len(times) and times[index] < end_ns:
            engine.at(times[index], arrive, index)

    engine.at(times[0], arrive, 0)
