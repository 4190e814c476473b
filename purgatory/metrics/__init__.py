"""Prometheus metrics of purgatories and their timers, read when they are scraped.

    purgatory.metrics.register(produce_purgatory)

Nothing is done per operation: a scrape asks each purgatory for its exact counters. Labels are
bounded: the purgatory, the outcome, the callback's stage; never a watch key. With prometheus-client
in multiprocess mode, the workers of a pre-forking server add up: see ``multiprocess``.
"""

from purgatory.metrics.collector import PurgatoryCollector, register, unregister
from purgatory.metrics.multiprocess import publish
from purgatory.metrics.relays import register_relay

__all__ = ["PurgatoryCollector", "publish", "register", "register_relay", "unregister"]
