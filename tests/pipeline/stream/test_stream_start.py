"""In which order the queries of ``purgatory stream`` start, with queries that only note it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

from purgatory.pipeline.stream import stream
from purgatory.pipeline.stream.sinks import StreamConfig


def events_of_a_run(on_event: Callable[[str, threading.Event], object], out: Path) -> list[str]:
    """Run queries that have begun when they are asked for the third time."""
    events: list[str] = []
    stop = threading.Event()

    def query(_results: object, sinks: Any, *_: object, **_more: object) -> SimpleNamespace:
        def note(what: str) -> None:
            events.append(f"{sinks.query} {what}")
            on_event(events[-1], stop)

        def has_begun() -> bool:
            note("is asked")
            return events.count(f"{sinks.query} is asked") == 3

        note("starts")
        return SimpleNamespace(
            has_begun=has_begun,
            is_active=lambda: False,
            raise_failure=lambda: None,
            stop=lambda: note("stops"),
        )

    sinks: Any = {name: MagicMock(query=name) for name in ("waits", "order")}
    unused: Any = MagicMock()
    with (
        patch.multiple(stream, _Query=query, _POLL_INTERVAL_S=0.0),
        patch.multiple(stream, order_findings=unused, windowed_waits=unused, rows_of=unused),
        patch.multiple(stream, _configure=unused),
        patch.object(stream, "warm_up", lambda _session: nullcontext()),
    ):
        stream.run_queries(unused, unused, StreamConfig(out, out), sinks, unused, stop)
    return events


def test_the_waits_start_when_the_audit_reads(tmp_path: Path) -> None:
    assert events_of_a_run(lambda _event, _stop: None, tmp_path) == [
        "order starts",
        *["order is asked"] * 3,
        "waits starts",
        "order stops",
        "waits stops",
    ]


def test_who_is_stopped_while_the_audit_starts_does_not_start_the_waits(tmp_path: Path) -> None:
    def stop_soon(event: str, stop: threading.Event) -> None:
        if event == "order is asked":
            stop.set()

    assert events_of_a_run(stop_soon, tmp_path) == [
        "order starts",
        "order is asked",
        "order stops",
    ]
