"""The log goes where the program configured it to go, and importing configures nothing.

pytest gives the standard library's root logger a handler of its own, so what counts without it is
seen in processes of their own.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import structlog

from tests.processes.metrics.faulty_server import Server

ROOT = Path(__file__).parents[3]


@pytest.fixture
def server() -> Server:
    return Server()


def test_users_structlog_configuration_precedes_the_standard_library(
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


def test_logging_records_have_values_in_text_and_as_attributes(
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
    pytest.param(NOTHING, ["missed_wakeup", "callback_failed"], id="nothing"),
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
from tests.processes.metrics.faulty_server import Server
server = Server()
for _ in range(1_000):
    server.purgatory.check_and_complete("key")
server.miss_a_wakeup()
server.fail_in("on_complete")
"""


def printed_by(program: str) -> str:
    ran = run(program)
    return ran.stdout + ran.stderr


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


@pytest.mark.parametrize(("configuration", "wanted"), CONFIGURED)
def test_logging_configured_by_the_program_is_respected(
    configuration: str, wanted: list[str]
) -> None:
    printed = printed_by(PROGRAM.format(configuration=configuration))
    events = [
        line for line in printed.splitlines() if "missed_wakeup" in line or "callback_f" in line
    ]
    assert len(events) == len(wanted), printed
    for line, start in zip(events, wanted, strict=True):
        assert line.startswith(start), line
    assert bool(wanted) == bool(printed), "a silenced log prints nothing at all"
    assert ("ValueError: on purpose" in printed) == bool(wanted), "with its traceback"


SILENT = """
import asyncio
from purgatory import AsyncPurgatory, DelayedOperationPurgatory
from timer import SystemTimer
from tests.processes.metrics.faulty_server import Server

async def main():
    async with AsyncPurgatory("Fetch") as purgatory:
        waits = [asyncio.create_task(purgatory.wait(["log"], lambda: False)) for _ in range(3)]
        await asyncio.sleep(0)
    await asyncio.gather(*waits, return_exceptions=True)

asyncio.run(main())
with DelayedOperationPurgatory("Produce"):
    pass
timer = SystemTimer("left")
timer.call_later(60_000, print)
timer.close()  # says timer_closed where it is heard
server = Server()
{fault}
"""


def test_a_program_that_configured_no_log_prints_only_faults() -> None:
    ran = run(SILENT.format(fault=""))
    assert (ran.stdout, ran.stderr) == ("", "")


@pytest.mark.parametrize(
    ("fault", "begin"),
    [
        ("server.miss_a_wakeup()", "missed_wakeup purgatory='Produce' operation="),
        ("server.fail_in('on_complete')", "callback_failed purgatory='Produce' operation="),
        ("server.timer.call_later(0, int, 'no number')", "timer_task_failed timer="),
    ],
)
def test_the_faults_of_a_program_without_a_log_go_to_standard_error(fault: str, begin: str) -> None:
    ran = run(SILENT.format(fault=fault))
    assert ran.stdout == ""
    assert ran.stderr.startswith(begin)


CLUSTER = """
from purgatory.cluster import ClusterConfig, ThreadedCluster

with ThreadedCluster(ClusterConfig(brokers=1)) as cluster:
    with cluster.fault.lose_responses(broker=1, count=1):
        pass
"""


def test_a_cluster_in_a_test_prints_nothing_either() -> None:
    ran = run(CLUSTER)
    assert (ran.stdout, ran.stderr) == ("", "")


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
    ran = run(program)
    assert "timer_task_failed" in ran.stderr
    assert ran.stdout == "False\n"
