"""A child of this process reports its own counts, with locks of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from purgatory import DelayedOperationPurgatory, metrics
from purgatory.metrics import collector
from purgatory.shared import relay
from tests.unit.core.probe import Setting
from timer import histogram

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def in_child(function: Callable[[], object]) -> str:
    """Run ``function`` in a forked child and return the text of its result."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, repr(function()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


@contextmanager
def held_elsewhere(lock: Any) -> Iterator[None]:
    """Have another thread hold ``lock``."""
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.pure
def test_a_childs_lateness_starts_from_zero_with_a_free_lock() -> None:
    setting = Setting()
    setting.timer.call_later(5, len, "")
    setting.pass_time(5)
    assert setting.timer.lateness.snapshot().total == 1
    with held_elsewhere(histogram._lock):
        assert in_child(lambda: setting.timer.lateness.snapshot().total) == "0"


def test_a_child_can_scrape_while_the_parent_did() -> None:
    registry = CollectorRegistry()
    with DelayedOperationPurgatory("Fetch") as purgatory:
        metrics.register(purgatory, registry)
        with held_elsewhere(collector._lock):
            told = in_child(
                lambda: registry.get_sample_value(
                    "purgatory_pending_operations", {"purgatory": "Fetch"}
                )
            )
    assert told == "0"


def test_a_child_lists_relays_while_the_parent_did() -> None:
    with held_elsewhere(relay._relays_lock):
        assert in_child(relay.relays) == "[]"
