"""What can be pressed in the views of a cluster, to make it go wrong."""

from __future__ import annotations

from typing import Any

from purgatory.kafka.faults import (
    Answer,
    CutConnections,
    DelayAnswers,
    Fault,
    FreezeMetadata,
    JumpClock,
    Kill,
    LoadCoordinator,
    LoseAnswers,
    Pause,
    RefuseProduces,
    SlowAnswers,
    StallFollower,
    TearAnswers,
    Throttle,
    TurnBackEpochs,
)

_FAULT_S = 10
_HOUR_MS = 3_600_000


def offered_faults(state: dict[str, Any]) -> list[Fault]:
    """Return what can be pressed now: for each broker that lives, what may happen to it."""
    offers: list[Fault] = []
    for broker in state["brokers"]:
        if not broker["alive"]:
            continue
        number = broker["id"]
        offers += [
            StallFollower(number, for_s=_FAULT_S),
            Kill(number, for_s=_FAULT_S),
            Pause(number, for_s=_FAULT_S),
            LoseAnswers(number, count=1, api="produce"),
            RefuseProduces(number, count=1),
            Answer(number, count=3, api="produce", error="NOT_LEADER_OR_FOLLOWER"),
            LoadCoordinator(number, for_s=_FAULT_S),
            FreezeMetadata(number, for_s=_FAULT_S),
            TurnBackEpochs(number, for_s=_FAULT_S),
            Throttle(number, throttle_ms=1_000, for_s=_FAULT_S),
            DelayAnswers(number, by_ms=100, distribution="exponential", for_s=_FAULT_S),
            SlowAnswers(number, bytes_per_s=1_000, for_s=_FAULT_S),
            TearAnswers(number, count=1),
            JumpClock(number, jump_ms=_HOUR_MS, for_s=_FAULT_S),
            CutConnections(number),
        ]
    return offers
