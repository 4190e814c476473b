"""The log: one event per rare thing, none per operation; one that raises harms nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
import structlog

from purgatory import AsyncPurgatory, DelayedOperationPurgatory, Outcome
from tests.processes.metrics.faulty_server import Named, Server
from tests.unit.core.probe import Logs, core_logs
from tests.unit.core.test_supervision import kill
from timer.log import configure_at_first_event, log_safely, safe_repr


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def logs() -> Iterator[Logs]:
    with core_logs() as entries:
        yield entries


# One event for each rare thing.


def test_a_rejection_is_one_event_and_at_most_one_a_second(server: Server, logs: Logs) -> None:
    server.reject()
    entry = {"event": "purgatory_full", "log_level": "warning", "purgatory": "Produce", "limit": 2}
    assert logs == [entry | {"operation": "<the operation>"}]
    for _ in range(100):
        server.clock.advance(9)  # 900 ms in all
        server.reject()
    assert len(logs) == 1
    server.clock.advance(100)
    server.reject()
    assert logs[1:] == [entry | {"operation": "<the operation>"}]


@pytest.mark.parametrize("stage", ["try_complete", "on_complete", "on_expiration"])
def test_a_callback_error_is_one_event(server: Server, logs: Logs, stage: str) -> None:
    if stage == "try_complete":
        probe = server.submit(Named())
        probe.hooks[stage] = lambda: 1 / 0
        server.purgatory.check_and_complete("key")
    else:
        probe = server.fail_in(stage)
    assert probe.outcome is Outcome.FAILED
    entry = {"event": "callback_failed", "log_level": "error", "purgatory": "Produce"}
    assert logs == [
        entry | {"operation": "<the operation>", "stage": stage, "exc_info": probe.error}
    ]


def test_a_missed_wakeup_is_one_event(server: Server, logs: Logs) -> None:
    server.miss_a_wakeup()
    entry = {"event": "missed_wakeup", "log_level": "warning", "purgatory": "Produce"}
    assert logs == [entry | {"operation": "<the operation>"}]


def test_a_close_is_one_event_however_often_it_is_called(server: Server, logs: Logs) -> None:
    server.submit(Named())
    for _ in range(3):
        server.purgatory.close()
    entry = {"event": "purgatory_closed", "log_level": "info", "purgatory": "Produce"}
    assert logs == [entry | {"pending": 1}]


def test_a_listener_that_fails_is_one_event(server: Server, logs: Logs) -> None:
    probe = server.submit(Named())
    probe.call_when_completed(lambda: 1 / 0)
    probe.call_when_completed(lambda: None)
    probe.force_complete()
    assert [entry["event"] for entry in logs] == ["listener_failed"]
    assert (logs[0]["purgatory"], logs[0]["operation"]) == ("Produce", "<the operation>")
    assert isinstance(logs[0]["exc_info"], ZeroDivisionError)


def test_a_reaper_that_is_started_anew_is_one_event(logs: Logs) -> None:
    with DelayedOperationPurgatory("Produce") as purgatory:
        kill(purgatory)
        purgatory._state.reaper_look_ns = 0  # as if a second had passed
        for _ in range(10):
            purgatory.try_complete_else_watch(Named(ready=True), ["key"])
        assert logs == [{"event": "reaper_restarted", "log_level": "error", "purgatory": "Produce"}]


def test_an_operation_that_ends_after_its_loop_is_one_event(logs: Logs) -> None:
    operation = Named()

    async def wait() -> None:
        await AsyncPurgatory("Fetch").submit(operation, ["key"])

    loop = asyncio.new_event_loop()
    task = loop.create_task(wait())
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    ender = threading.Thread(target=operation.force_complete)
    ender.start()
    ender.join(60)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    entry = {"event": "loop_closed", "log_level": "warning", "purgatory": "Fetch"}
    assert logs == [entry | {"operation": "<the operation>"}]


# None for each operation.


def immediate(server: Server) -> None:
    server.submit(Named(ready=True))


def completed(server: Server) -> None:
    probe = server.submit(Named())
    probe.ready = True
    server.purgatory.check_and_complete("key")


def expired(server: Server) -> None:
    server.submit(Named(500))
    server.pass_time(500)


def cancelled(server: Server) -> None:
    server.submit(Named()).cancel()


def rejected(server: Server) -> None:
    server.reject()


@pytest.mark.parametrize("become", [immediate, completed, expired, cancelled, rejected])
def test_a_thousand_operations_leave_no_event_each(
    server: Server, logs: Logs, become: Callable[[Server], None]
) -> None:
    for _ in range(1_000):
        become(server)
    assert server.purgatory.counters.outcomes[become.__name__] == 1_000
    assert [entry["event"] for entry in logs] == ["purgatory_full"] * (become is rejected)


def test_a_thousand_operations_that_a_close_fails_leave_one_event(logs: Logs) -> None:
    with DelayedOperationPurgatory("Produce", reaper_enabled=False) as purgatory:
        for _ in range(1_000):
            purgatory.try_complete_else_watch(Named(), ["key"])
        purgatory.close("fail")
        assert purgatory.counters.outcomes["failed"] == 1_000
    assert [entry["event"] for entry in logs] == ["purgatory_closed"]


# A log that raises harms nothing.


def break_structlog() -> None:
    def broken(*args: Any) -> NoReturn:
        raise BrokenPipeError("nobody reads the log")

    structlog.configure(processors=[broken])


class BrokenHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise BrokenPipeError("nobody reads the log")


@pytest.fixture(params=["structlog", "standard library"])
def _broken_log(request: pytest.FixtureRequest) -> Iterator[None]:
    handler = BrokenHandler()
    if request.param == "structlog":
        break_structlog()
    for name in ("timer", "purgatory"):
        logging.getLogger(name).addHandler(handler)
    yield
    for name in ("timer", "purgatory"):
        logging.getLogger(name).removeHandler(handler)


@pytest.mark.usefixtures("_broken_log")
def test_a_log_that_raises_harms_nothing(server: Server) -> None:
    assert server.reject().outcome is Outcome.CANCELLED
    assert server.fail_in("on_complete").outcome is Outcome.FAILED
    assert server.miss_a_wakeup().outcome is Outcome.COMPLETED
    server.timer.call_later(0, lambda: 1 / 0)
    beside = server.submit(Named())
    assert server.purgatory.close() == 1
    assert beside.outcome is Outcome.FAILED
    outcomes = server.purgatory.counters.outcomes
    assert (outcomes["rejected"], outcomes["failed"], outcomes["completed"]) == (1, 2, 3)
    server.timer.call_later(5, print)
    assert server.timer.close() == 1
    assert server.timer.failures == 1


def test_the_text_of_an_object_in_the_log_never_raises() -> None:
    class Unspeakable(Exception):
        def __repr__(self) -> str:
            raise self

    assert safe_repr(Unspeakable()) == "<Unspeakable whose repr raised Unspeakable>"


# A configuration that waits for the first event.


def test_structlog_is_configured_by_the_first_event(logs: Logs) -> None:
    configured: list[str] = []
    configure_at_first_event(lambda: configured.append("once"), dropped={"purgatory_closed"})
    try:
        log_safely("purgatory", "info", "purgatory_closed", pending=0)
        assert (configured, logs) == ([], [])
        for event in ("first", "second"):
            log_safely("purgatory", "warning", event)
        assert configured == ["once"]
        assert [entry["event"] for entry in logs] == ["first", "second"]
    finally:
        configure_at_first_event(None)
