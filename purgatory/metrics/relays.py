"""Metrics of the relays by which purgatories of several processes hear of each other.

They are prometheus-client's own counters and gauges, so that its multiprocess mode adds up those of
all workers: a relay counts as live if those of all workers that live are.

Ground rules: `_families` has one set for a registry, made at its first relay. A relay calls its
observer on its loop's thread.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from purgatory.shared.relay import Relay


class _Families(NamedTuple):
    live: Gauge
    deaf_s: Counter
    messages: Counter
    reconnects: Counter


_families: weakref.WeakKeyDictionary[CollectorRegistry, _Families] = weakref.WeakKeyDictionary()


def register_relay(
    relay: Relay, registry: CollectorRegistry = REGISTRY, label: str | None = None
) -> None:
    """Have ``registry`` report ``relay``, from now on.

    Args:
        relay: of one or several SharedPurgatories.
        registry: prometheus-client's default one, or one of your own.
        label: the value of the label ``relay``; by default the name of its class.

    Raises:
        TypeError: the label is no string.
    """
    if label is not None and not isinstance(label, str):
        raise TypeError(f"a label must be a str, not {label!r}")
    families = _families.get(registry)
    if families is None:
        families = _families.setdefault(registry, _make(registry))
    name = type(relay).__name__ if label is None else label
    live, deaf_s = families.live.labels(name), families.deaf_s.labels(name)
    messages = {
        direction: families.messages.labels(name, direction)
        for direction in ("sent", "received", "lost")
    }
    reconnects = families.reconnects.labels(name)

    def observe(event: str, amount: float) -> None:
        if event == "live":
            live.set(amount)
        elif event == "deaf_s":
            deaf_s.inc(amount)
        elif event == "reconnects":
            reconnects.inc(amount)
        else:
            messages[event].inc(amount)

    live.set(relay.state.name == "live")
    relay.observer = observe


def _make(registry: CollectorRegistry) -> _Families:
    return _Families(
        Gauge(
            "purgatory_relay_live",
            "Whether the process hears what others send: 0 while its relay is deaf.",
            ["relay"],
            registry=registry,
            multiprocess_mode="livemin",
        ),
        Counter(
            "purgatory_relay_deaf_seconds",
            "How long relays were deaf, counted when they are live again.",
            ["relay"],
            registry=registry,
        ),
        Counter(
            "purgatory_relay_messages",
            "Messages that were sent, received, or lost because they could not be sent.",
            ["relay", "direction"],
            registry=registry,
        ),
        Counter(
            "purgatory_relay_reconnects",
            "How often a relay was connected again.",
            ["relay"],
            registry=registry,
        ),
    )
