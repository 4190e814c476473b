"""What can be pressed in the views of a cluster, to make it go wrong, and faults in words."""

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
_UNITS = {"by_ms": "ms", "throttle_ms": "ms", "jump_ms": "ms", "bytes_per_s": "bytes/s"}
"""What is shown of a fault with its unit."""


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


def fault_text(fault: Fault) -> str:
    """Return a fault in words: "stall follower 2 for 10 s"."""
    words = [fault.kind.replace("_", " "), *map(str, fault.brokers)]
    settings = fault.settings
    details = [str(settings[name]) for name in ("count", "api", "error") if name in settings]
    details += [f"{settings[name]} {unit}" for name, unit in _UNITS.items() if name in settings]
    if details:
        words.append(f"({', '.join(details)})")
    if fault.for_s is not None:
        words.append(f"for {fault.for_s} s")
    return " ".join(words)
