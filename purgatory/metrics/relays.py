"""Metrics of the relays by which purgatories of several processes hear of each other.

They are prometheus-client's own counters and gauges, so that its multiprocess mode adds up those of
all workers: a relay counts as deaf if that of any worker is.

Ground rules: `_families` has one set for a registry, made at its first relay. A relay calls its
observers on its loop's thread.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from purgatory.shared.relay import Relay


class _Families(NamedTuple):
    deaf: Gauge
    deaf_s: Counter
    messages: Counter
    reconnects: Counter
    relays: weakref.WeakValueDictionary[str, Relay]
    """By their labels."""


_families: weakref.WeakKeyDictionary[CollectorRegistry, _Families] = weakref.WeakKeyDictionary()


def register_relay(
    relay: Relay, registry: CollectorRegistry = REGISTRY, label: str | None = None
) -> None:
    """Have ``registry`` report ``relay``, from now on.

    Args:
        relay: of one or several SharedPurgatories.
        registry: prometheus-client's default one, or one of your own.
        label: the value of the label ``relay``; by default the name of its class.

    Registering it again under the same label has no effect.

    Raises:
        TypeError: the label is no string.
        ValueError: another relay, that is not closed, is registered there under this label.
    """
    if label is not None and not isinstance(label, str):
        raise TypeError(f"a label must be a str, not {label!r}")
    families = _families.get(registry)
    if families is None:
        families = _families.setdefault(registry, _make(registry))
    name = type(relay).__name__ if label is None else label
    other = families.relays.setdefault(name, relay)
    if other is not relay:
        if other.state.name != "closed":
            raise ValueError(f"there is a relay labelled {name!r} already: pass another label=")
        other.observers.pop(registry, None)
        families.relays[name] = relay
    deaf, deaf_s = families.deaf.labels(name), families.deaf_s.labels(name)
    messages = {
        direction: families.messages.labels(name, direction)
        for direction in ("sent", "received", "lost")
    }
    reconnects = families.reconnects.labels(name)

    def observe(event: str, amount: float) -> None:
        if event == "deaf":
            deaf.set(amount)
        elif event == "deaf_s":
            deaf_s.inc(amount)
        elif event == "reconnects":
            reconnects.inc(amount)
        else:
            messages[event].inc(amount)

    deaf.set(relay.state.name in ("deaf", "refused"))
    relay.observers[registry] = observe


def _make(registry: CollectorRegistry) -> _Families:
    return _Families(
        Gauge(
            "purgatory_relay_deaf",
            "1 while the process does not hear what others send.",
            ["relay"],
            registry=registry,
            multiprocess_mode="livemax",
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
        weakref.WeakValueDictionary(),
    )
