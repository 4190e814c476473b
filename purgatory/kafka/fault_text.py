"""A fault in words, for lists and logs that people read."""

from __future__ import annotations

from purgatory.kafka.faults import Fault

_UNITS = {"by_ms": "ms", "throttle_ms": "ms", "jump_ms": "ms", "bytes_per_s": "bytes/s"}
"""What is shown of a fault with its unit."""


def fault_text(fault: Fault) -> str:
    """Return a fault in words: "stall follower 2 for 10 s"."""
    words = [fault.kind.replace("_", " "), *map(str, fault.brokers)]
    settings = fault.settings
    details = [str(settings[name]) for name in ("count", "api", "error") if name in settings]
    details += [f"{settings[name]} {unit}" for name, unit in _UNITS.items() if name in settings]
    if details:
        words.append(f"({', '.join(details)})")
    if fault.for_s is not None:
        words.append(f"for {fault.for_s:g} s")
    return " ".join(words)
