"""The log: one event per rare thing, none per operation, written as the program configured it."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import structlog

from purgatory import DelayedOperationPurgatory, Outcome, PurgatoryFullError
from tests.purgatory.probe import Logs, Probe
from tests.purgatory.test_supervision import kill
from timer import InlineExecutor, ManualClock, SystemTimer
from timer.safe_log import safe_repr

ROOT = Path(__file__).parents[2]


class Named(Probe):
    """An operation whose text does not change with its outcome."""

    def __repr__(self) -> str:
        return "<the operation>"


class Server:
    """A purgatory that takes 2 operations, on a clock that is moved by hand, on this thread."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timer = SystemTimer("manual", clock=self.clock, executor=InlineExecutor())
        self.purgatory = DelayedOperationPurgatory(
            "Produce", timer=self.timer, reaper_enabled=False, max_pending=2
        )

    def submit(self, probe: Named) -> Named:
        self.purgatory.try_complete_else_watch(probe, ["key"])
        return probe

    def reject(self) -> Named:
        waiting = [self.submit(Named()) for _ in range(2)]
        rejected = Named()
        with pytest.raises(PurgatoryFullError):
            self.submit(rejected)
        for probe in waiting:
            probe.force_complete()
        return rejected

    def fail_in(self, stage: str) -> Named:
        def raises() -> NoReturn:
            raise ValueError("on purpose")

        probe = self.submit(Named(1_000, hooks={stage: raises}))
        self.purgatory.check_and_complete("key")
        if stage != "try_complete":
            self.pass_time(1_000)
        return probe

    def miss_a_wakeup(self) -> Named:
        probe = self.submit(Named(1_000))
        probe.ready = True
        self.pass_time(1_000)
        return probe

    def pass_time(self, delta_ms: int) -> None:
        self.clock.advance(delta_ms)
        self.timer.advance_clock(0)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def logs() -> Iterator[Logs]:
    with structlog.testing.capture_logs() as entries:
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
    probe.call_when_settled(lambda: 1 / 0)
    probe.call_when_settled(lambda: None)
    probe.force_complete()
    assert [entry["event"] for entry in logs] == ["listener_failed"]
    assert (logs[0]["purgatory"], logs[0]["operation"]) == ("Produce", "<the operation>")
    assert isinstance(logs[0]["exc_info"], ZeroDivisionError)


def test_a_reaper_that_is_started_anew_is_one_event(logs: Logs) -> None:
    with DelayedOperationPurgatory("Produce") as purgatory:
        kill(purgatory)
        purgatory._reaper_look_ns = 0  # as if a second had passed
        for _ in range(10):
            purgatory.try_complete_else_watch(Named(ready=True), ["key"])
        assert logs == [{"event": "reaper_restarted", "log_level": "error", "purgatory": "Produce"}]


# None for each operation.


def immediate(server: Server) -> None:
    server.submit(Named(ready=True))


def completed(server: Server) -> None:
    probe = server.submit(Named())
    probe.ready = True
    server.purgatory.check_and_complete("key")


def expired(server: Server) -> None:
    server.submit(Named(5))
    server.pass_time(5)


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


# Whose configuration counts. pytest gives the standard library's root logger a handler of its own,
# so what counts without it is seen in processes of their own.


def test_a_users_structlog_comes_before_the_standard_library(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    def note(_logger: object, method: str, entry: structlog.typing.EventDict) -> NoReturn:
        seen.append((method, entry["event"], entry["purgatory"]))
        raise structlog.DropEvent

    structlog.configure(processors=[note])
    server.miss_a_wakeup()
    assert seen == [("warning", "missed_wakeup", "Produce")]
    assert caplog.records == []


def test_structlog_on_top_of_the_standard_library_names_its_loggers(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    structlog.configure(
        processors=[structlog.stdlib.render_to_log_kwargs],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    server.miss_a_wakeup()
    server.timer.call_later(0, lambda: 1 / 0)
    found = [(record.name, record.levelname, record.message) for record in caplog.records]
    assert found == [
        ("purgatory", "WARNING", "missed_wakeup"),
        ("timer", "ERROR", "timer_task_failed"),
    ]


def test_the_standard_librarys_records_have_the_values_in_text_and_beside_it(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    probe = server.fail_in("on_complete")
    (record,) = caplog.records
    assert record.name == "purgatory"
    assert record.levelno == logging.ERROR
    assert record.message == (
        "callback_failed purgatory='Produce' operation='<the operation>' stage='on_complete'"
    )
    fields = {"event": "callback_failed", "purgatory": "Produce", "operation": "<the operation>"}
    assert fields.items() <= vars(record).items()
    assert record.exc_info is not None
    assert record.exc_info[1] is probe.error


NOTHING = ""
BASIC = "logging.basicConfig(format='%(levelname)s:%(name)s:%(message)s', stream=sys.stdout)"
CONFIGURED = [
    pytest.param(NOTHING, ["missed_wakeup", "callback_failed"], id="nothing: structlog prints"),
    pytest.param(
        BASIC, ["WARNING:purgatory:missed_wakeup", "ERROR:purgatory:callback_failed"], id="root"
    ),
    pytest.param(
        f"{BASIC}; logging.getLogger('purgatory').setLevel('ERROR')",
        ["ERROR:purgatory:callback_failed"],
        id="root and our level",
    ),
    pytest.param(
        "handler = logging.StreamHandler(sys.stdout);"
        "handler.setFormatter(logging.Formatter('mine:%(message)s'));"
        "logging.getLogger('purgatory').addHandler(handler)",
        ["mine:missed_wakeup", "mine:callback_failed"],
        id="our handler",
    ),
    pytest.param("logging.getLogger('purgatory').setLevel('CRITICAL')", [], id="our level"),
    pytest.param("logging.getLogger().setLevel('CRITICAL')", [], id="the root's level"),
    pytest.param("logging.getLogger('purgatory').disabled = True", [], id="our logger disabled"),
    pytest.param("logging.disable()", [], id="all disabled"),
]
PROGRAM = """
import logging, sys
{configuration}
from tests.metrics.test_logs import Server
server = Server()
for _ in range(1_000):
    server.purgatory.check_and_complete("key")
server.miss_a_wakeup()
server.fail_in("on_complete")
"""


def printed_by(program: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ran.stdout + ran.stderr


@pytest.mark.parametrize(("configuration", "wanted"), CONFIGURED)
def test_a_program_that_configured_only_the_standard_library_is_respected(
    configuration: str, wanted: list[str]
) -> None:
    printed = printed_by(PROGRAM.format(configuration=configuration))
    events = [
        line for line in printed.splitlines() if "missed_wakeup" in line or "callback_f" in line
    ]
    assert len(events) == len(wanted), printed
    for line, start in zip(events, wanted, strict=True):
        assert line.startswith(start) or (configuration == NOTHING and start in line), line
    assert bool(wanted) == bool(printed), "a silenced log prints nothing at all"
    assert ("ValueError: on purpose" in printed) == bool(wanted), "with its traceback"


IMPORTS = """
import logging
import timer, purgatory, purgatory.metrics, purgatory.kafka, purgatory.simulation, purgatory.cli
import structlog
assert not structlog.is_configured()
root = logging.getLogger()
assert (root.handlers, root.level, root.manager.disable) == ([], logging.WARNING, 0)
for name in root.manager.loggerDict:
    if name.split(".")[0] in ("timer", "purgatory"):
        logger = logging.getLogger(name)
        assert (logger.handlers, logger.level) == ([], logging.NOTSET), name
"""


def test_importing_configures_nothing() -> None:
    assert printed_by(IMPORTS) == ""


def test_the_timer_alone_needs_no_purgatory() -> None:
    program = (
        "import sys, timer; t = timer.SystemTimer('alone', clock=timer.ManualClock(),"
        " executor=timer.InlineExecutor());"
        "t.call_later(0, int, 'no number'); print('purgatory' in sys.modules)"
    )
    printed = printed_by(program)
    assert "timer_task_failed" in printed
    assert printed.endswith("False\n")


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
    assert beside.outcome is Outcome.EXPIRED
    outcomes = server.purgatory.counters.outcomes
    assert (outcomes["rejected"], outcomes["failed"], outcomes["completed"]) == (1, 1, 3)
    server.timer.call_later(5, print)
    assert server.timer.close() == 1
    assert server.timer.failures == 1


def test_what_is_logged_of_an_object_never_raises() -> None:
    class Unspeakable(Exception):
        def __repr__(self) -> str:
            raise self

    assert safe_repr(Unspeakable()) == "<Unspeakable whose repr raised Unspeakable>"
