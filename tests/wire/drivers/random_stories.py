"""Random stories: the same one for the same seed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random

from purgatory.kafka.faults import (
    CutConnections,
    CutLink,
    DelayResponses,
    DuplicateResponses,
    Fault,
    Kill,
    LoseResponses,
    Pause,
    RefuseProduces,
    ShrinkIsr,
    SlowFollower,
    StallFollower,
)
from tests.wire.drivers.steps import (
    ALL,
    BROKERS,
    LONG_MS,
    PARTITIONS,
    TOPIC,
    Begin,
    End,
    Produce,
    Read,
    Step,
    Story,
)

_STEPS = 24
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def random_story(seed: int) -> Story:
    """Return a story of some thirty steps in which all faults have ended at the end.

    Its expected end is unknown. If it damages logs, any record may be lost.
    """
    steps = tuple(_steps(Random(seed)))
    is_damaging = any(
        isinstance(step, Begin) and isinstance(step.fault, Kill) and step.fault.lost_records
        for step in steps
    )
    return Story(f"seed {seed}", "", steps, "", "", loses=_LETTERS if is_damaging else "")


def _steps(rng: Random) -> Iterator[Step]:
    letters = iter(_LETTERS)
    sequences = {partition: count() for partition in range(PARTITIONS)}
    in_force: list[Fault] = []
    for _ in range(_STEPS):
        kind = rng.choice(["produce", "produce", "idempotent", "read", "begin", "begin", "end"])
        partition = rng.randrange(PARTITIONS)
        if kind == "produce":
            yield Produce(
                next(letters),
                rng.choice([1, 1, 2]),
                rng.choice([ALL, ALL, 1]),
                LONG_MS,
                partition,
                rng.choice([None, None, None, *BROKERS]),
            )
        elif kind == "idempotent":
            sequence = next(sequences[partition])
            produce = Produce(next(letters), partition=partition, producer=7, sequence=sequence)
            yield from [produce] * rng.choice([1, 2])
        elif kind == "read":
            yield Read(partition, rng.choice([None, *BROKERS]))
        elif kind == "begin":
            fault = _fault(rng)
            if fault not in in_force:
                if not isinstance(fault, CutConnections):
                    in_force.append(fault)
                yield Begin(fault)
        elif in_force:
            yield End(in_force.pop(rng.randrange(len(in_force))))
    rng.shuffle(in_force)
    yield from map(End, in_force)


def _fault(rng: Random) -> Fault:
    one, other = rng.sample(BROKERS, 2)
    one_or_all = rng.choice([None, one])
    return rng.choice(
        [
            StallFollower(one),
            StallFollower(one),
            SlowFollower(one, 10),
            ShrinkIsr(TOPIC, rng.randrange(PARTITIONS), one),
            Kill(one),
            Kill(one, lost_records=rng.choice([0, 0, 1, 2])),
            Pause(one),
            CutLink(one, other),
            LoseResponses(one_or_all, 1, cut=rng.random() < 0.5),
            DelayResponses(one_or_all, 1, by_ms=20),
            DuplicateResponses(one_or_all, 1),
            RefuseProduces(one_or_all, 1),
            CutConnections(one_or_all),
        ]
    )
