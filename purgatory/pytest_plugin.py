"""The pytest fixtures for tests of Kafka clients: ``kafka_cluster``, ``kafka_proxy``, ``world``.

    def test_my_producer(kafka_cluster):
        with kafka_cluster.fault.lose_responses(broker=1, count=1):
            ...

    def test_nothing_is_lost(kafka_cluster):
        ...
        kafka_cluster.audit(expect=["no-loss"]).assert_no_violations()

Each test has its own cluster: three brokers on ports that the system chooses. A test, class or
module with another configuration overrides ``kafka_cluster_config``; one that floods its cluster,
and audits nothing, has ``kafka_cluster_recorded`` return False.

    pytest --kafka 4.3.1     # or the folder of an unpacked Kafka

runs the same tests on a real Kafka, behind a proxy that has the faults. A fault it lacks skips its
test, or fails it with ``--kafka-strict``. Its start takes seconds: a suite pays once with
``kafka_session_cluster``, one cluster for all tests, and ``kafka_name``, which makes names of
topics and groups that no other test has.

    def test_in_front_of_a_real_kafka(kafka_proxy):
        proxy = kafka_proxy("kafka-1:9092")
        with proxy.fault.lose_responses(api="Produce", count=1):
            ...

``kafka_proxy`` puts a proxy in front of a cluster, until the test ends. With ``recorded=True`` the
proxy has an ``audit``, too.

    @pytest.mark.virtual(seeds=50)
    async def test_in_virtual_time(world):
        ...

A test that takes `world` runs in virtual time, and a coroutine function on the world's loop. With
``@pytest.mark.virtual`` it runs again and again until it fails: ``seeds=50`` once for each seed,
``schedules=2000`` in as many orders of its tasks, ``exhaustive=2`` in all orders with at most two
deviations from first in, first out. A failure reports its seed, the faults, the last events, and
the command that repeats it; then the test is shrunk: repeated with ever less, as long as it fails.
"""

from __future__ import annotations

import itertools
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from inspect import isasyncgenfunction, iscoroutinefunction
from os.path import relpath
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import pytest

if TYPE_CHECKING:
    from purgatory.cluster import ClusterConfig, ThreadedCluster
    from purgatory.proxy import ThreadedProxy
    from purgatory.real_kafka import ThreadedRealKafka
    from purgatory.virtual import World
    from purgatory.virtual.seeded_tests import Plan


@pytest.fixture
def kafka_cluster_config() -> ClusterConfig:
    """The configuration of a test's cluster: groups have no initial rebalance delay."""
    return _quick_config()


@pytest.fixture(scope="session")
def kafka_session_config() -> ClusterConfig:
    """The configuration of the session's cluster."""
    return _quick_config()


def _quick_config() -> ClusterConfig:
    with _one_line_import_errors():
        from purgatory.cluster import ClusterConfig, GroupConfig

    groups = GroupConfig(
        initial_rebalance_delay_ms=0,
        min_session_timeout_ms=100,
        consumer_heartbeat_interval_ms=200,
        share_heartbeat_interval_ms=200,
    )
    return ClusterConfig(groups=groups)


@pytest.fixture
def kafka_cluster_recorded() -> bool:
    """Whether a test's cluster is recorded, so that the test may audit it."""
    return True


@pytest.fixture
def kafka_cluster(
    pytestconfig: pytest.Config, kafka_cluster_config: ClusterConfig, kafka_cluster_recorded: bool
) -> Iterator[ThreadedCluster | ThreadedRealKafka]:
    """A cluster during the test; with ``--kafka``, of real brokers."""
    with _new_cluster(pytestconfig, kafka_cluster_config, kafka_cluster_recorded) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _kafka_session(
    pytestconfig: pytest.Config, kafka_session_config: ClusterConfig
) -> Iterator[ThreadedCluster | ThreadedRealKafka]:
    with _new_cluster(pytestconfig, kafka_session_config, recorded=True) as cluster:
        yield cluster


@pytest.fixture
def kafka_session_cluster(
    _kafka_session: ThreadedCluster | ThreadedRealKafka,
) -> Iterator[ThreadedCluster | ThreadedRealKafka]:
    """The one cluster of all tests that take this; each audits what happened since its start.

    After a test its faults are ended, and dead brokers revived. Its topics and groups stay:
    `kafka_name` tells them apart.
    """
    _kafka_session.forget_recorded()
    yield _kafka_session
    _kafka_session.settle()


@pytest.fixture
def kafka_name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """A function that makes a name of the test's own of a topic's, a group's or a client's.

    ``kafka_name("orders")`` is such as "orders-test_billing-7", the same throughout the test.
    """
    test = re.sub(r"[^A-Za-z0-9_]+", "_", request.node.name)[:100].strip("_")
    number = next(_TEST_NUMBERS)
    return lambda name: f"{name}-{test}-{number}"


_TEST_NUMBERS = itertools.count(1)


@contextmanager
def _new_cluster(
    config: pytest.Config, cluster_config: ClusterConfig, recorded: bool
) -> Iterator[ThreadedCluster | ThreadedRealKafka]:
    """Run a cluster of ours, or with ``--kafka`` a real one."""
    with _one_line_import_errors():
        from purgatory.cluster import ThreadedCluster
    files = config.stash.get(_KAFKA, None)
    if files is None:
        with ThreadedCluster(cluster_config, recorded=recorded) as cluster:
            yield cluster
        return
    from purgatory.real_kafka import ThreadedRealKafka

    def on_only_ours(error: Exception) -> NoReturn:
        _end_only_ours(config, str(error))

    with ThreadedRealKafka(
        files, cluster_config, recorded=recorded, on_only_ours=on_only_ours
    ) as kafka:
        yield kafka


_KAFKA = pytest.StashKey[Any]()
"""The `KafkaFiles` of the Kafka that ``--kafka`` names."""


def _end_only_ours(config: pytest.Config, text: str) -> NoReturn:
    """End a test that only a cluster of ours can run, by one line."""
    if config.getoption("kafka_strict"):
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


@pytest.fixture
def kafka_proxy() -> Iterator[Callable[..., ThreadedProxy]]:
    """A function that puts a proxy in front of the cluster with these bootstrap servers."""
    with _one_line_import_errors("kafka_proxy"):
        from purgatory.proxy import ProxyConfig, ThreadedProxy
    with ExitStack() as stack:

        def start(bootstrap: str, recorded: bool = False) -> ThreadedProxy:
            config = ProxyConfig(to=bootstrap.split(","))
            return stack.enter_context(ThreadedProxy(config, recorded=recorded))

        yield start


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of clusters, and of virtual worlds."""
    clusters = parser.getgroup("kafka", "Kafka clusters")
    clusters.addoption(
        "--kafka",
        metavar="VERSION|PATH",
        help="run clusters' tests on a real Kafka: a version, such as 4.3.1, which Maven fetches "
        "once, or the folder of an unpacked one",
    )
    clusters.addoption(
        "--kafka-strict",
        action="store_true",
        help="fail tests that a real Kafka can't run, in place of skipping them",
    )
    group = parser.getgroup("purgatory", "Kafka clients in virtual time")
    group.addoption(
        "--virtual-seeds", type=_at_least_one, metavar="N", help="run marked tests with N seeds"
    )
    group.addoption(
        "--virtual-jobs",
        type=_at_least_one,
        default=1,
        metavar="N",
        help="share the runs of a test among N processes (default: 1)",
    )
    group.addoption(
        "--virtual-seed", type=int, metavar="S", help="run tests in a world with this seed alone"
    )
    group.addoption(
        "--virtual-without",
        type=_fault_numbers,
        default=(),
        metavar="FAULTS",
        help="leave these faults of worlds out, by their numbers: 3,7 or 0-2,7",
    )
    group.addoption(
        "--virtual-plain-network",
        action="store_true",
        help="have the networks of worlds lose nothing, and take the same time for all",
    )
    group.addoption(
        "--virtual-schedule",
        type=_schedule,
        metavar="SCHEDULE",
        help="run what is ready in this order: fifo, mixed, random, sticky, pct, "
        "pct:DEPTH, or a failure's",
    )
    group.addoption(
        "--virtual-shrink-attempts",
        type=_at_least_one,
        metavar="N",
        help="run a failed test at most so many times with less (default: 300)",
    )
    group.addoption(
        "--virtual-no-shrink", action="store_true", help="don't look for smaller failures"
    )


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(text)
    return int(text)


def _schedule(text: str) -> str:
    from purgatory.virtual.errors import WorldError
    from purgatory.virtual.schedules import parse_schedule

    try:
        parse_schedule(text, None)
    except WorldError as error:
        raise ArgumentTypeError(str(error)) from None
    return text


def _fault_numbers(text: str) -> Sequence[int]:
    from purgatory.virtual.planned_faults import parse_numbers

    try:
        return parse_numbers(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and find the real Kafka."""
    _find_kafka(config)
    config.addinivalue_line(
        "markers",
        "virtual(seeds=20, schedules=, schedule=, exhaustive=, on_unhandled=, max_steps=): run the "
        "test, which takes the fixture `world`, with so many seeds or schedules, until it fails",
    )


def _find_kafka(config: pytest.Config) -> None:
    """Find the Kafka of ``--kafka``.

    Raises:
        pytest.UsageError: it is not there, in one line.
    """
    text = config.getoption("kafka")
    if text is None:
        if config.getoption("kafka_strict"):
            raise pytest.UsageError("--kafka-strict without --kafka")
        return
    try:
        from purgatory.kafka.errors import ClusterError
        from purgatory.real_kafka import find_kafka
    except ImportError as error:
        raise pytest.UsageError(f"--kafka: {error}") from None
    try:
        config.stash[_KAFKA] = find_kafka(text)
    except ClusterError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Check the mark of a test."""
    mark = metafunc.definition.get_closest_marker("virtual")
    if mark is None:
        return
    name = metafunc.definition.nodeid
    if "world" not in metafunc.fixturenames:
        raise pytest.UsageError(f"{name}: a test marked as virtual takes the fixture `world`")
    if mark.args:
        raise pytest.UsageError(f"{name}: the mark takes arguments by name: virtual(seeds=50)")
    _plan(metafunc.definition)


def _plan(item: pytest.Item) -> Plan:
    """Return the runs of a test.

    Raises:
        pytest.UsageError: its mark or an option is invalid.
    """
    from purgatory.virtual.errors import WorldError
    from purgatory.virtual.seeded_tests import Plan

    names = ("seeds", "seed", "schedule", "without", "plain_network")
    options = {name: item.config.getoption(f"virtual_{name}") for name in names}
    mark = item.get_closest_marker("virtual")
    try:
        return Plan(None if mark is None else mark.kwargs, options)
    except (TypeError, ValueError, WorldError) as error:
        raise pytest.UsageError(f"{item.nodeid}: {error}") from None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Plan the runs of a test in worlds."""
    if not (isinstance(item, pytest.Function) and _takes_world(item)):
        return
    if _KAFKA in item.config.stash:
        _end_only_ours(
            item.config, "virtual time: not with a real Kafka: its time is the machine's"
        )
    from purgatory.virtual.seeded_tests import SeededTest, keep_pytest_clocks
    from purgatory.virtual.shrinking import MAX_ATTEMPTS

    keep_pytest_clocks()
    option = item.config.getoption
    attempts = option("--virtual-shrink-attempts") or MAX_ATTEMPTS
    if option("--virtual-no-shrink") or option("tbstyle") == "no" or option("usepdb"):
        attempts = 0
    item.stash[_TEST] = SeededTest(
        item,
        _typed_id(item),
        _plan(item),
        attempts,
        option("--virtual-jobs"),
        makes_worlds=not option("usepdb"),
    )


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A virtual world during the test."""
    if _TEST not in request.node.stash:
        raise pytest.UsageError(f"{request.node.nodeid}: take `world` as an argument of the test")
    with request.node.stash[_TEST].new_world() as world:
        yield world


_TEST = pytest.StashKey[Any]()
"""The `SeededTest` of a test that takes a world."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep pytest-asyncio from running a test of a world on a loop of its own."""
    if type(item).__module__.startswith("pytest_asyncio") and _takes_world(item):
        item.__class__ = _plain_kind(type(item))


@cache
def _plain_kind(kind: type[pytest.Item]) -> type[pytest.Item]:
    """Return a kind of test that runs as a plain function, and is still an instance of its kind."""
    own = {"setup": pytest.Function.setup, "runtest": pytest.Function.runtest}
    metaclass: Any = type(kind)
    plain: type[pytest.Item] = metaclass(f"{kind.__name__}InWorld", (kind,), own)
    return plain


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    """Run a test in its worlds, as a plain function, which other plugins leave alone."""
    __tracebackhide__ = True
    test = pyfuncitem.stash.get(_TEST, None)
    if test is None or not _is_world(pyfuncitem.funcargs.get("world")):
        return (yield)

    def run(**arguments: Any) -> None:
        __tracebackhide__ = True
        test.run()

    function = pyfuncitem.obj
    pyfuncitem.obj = run
    try:
        return (yield)
    finally:
        pyfuncitem.obj = function


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Any:
    """Run a fixture of a test that is a coroutine function in the test's world."""
    fixture: Any = fixturedef
    function, is_generator = fixture.func, isasyncgenfunction(fixture.func)
    is_ours = fixture.scope == "function" and "world" in request.fixturenames
    if not is_ours or not (is_generator or iscoroutinefunction(function)):
        return (yield)
    world = request.getfixturevalue("world")
    if not _is_world(world):
        return (yield)
    from _pytest.fixtures import resolve_fixture_function

    from purgatory.virtual.seeded_tests import fixture_in_world, in_world

    bound: Any = resolve_fixture_function(fixture, request)  # to the object of a test's class
    if is_generator:
        fixture.func = fixture_in_world(world, bound, request.addfinalizer)
    else:
        fixture.func = in_world(world, bound)
    try:
        return (yield)
    finally:
        fixture.func = function


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    """Add the last events, and the command that repeats them, to a failure in a world."""
    report = yield
    _add_audits(report)
    test = item.stash.get(_TEST, None)
    if report.failed and test is not None:
        if not test.sections and test.world is not None:  # in a fixture, or an xfail that passed
            from purgatory.virtual.failure_report import world_failure

            error = None if call.excinfo is None else call.excinfo.value
            failure = world_failure(test.world, test.current, error)
            report.sections.append(("virtual world", failure.report))
        report.sections += test.sections
        test.sections = []
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the results of exhaustive searches, and what the audits of passed tests rest on."""
    for property_name, title in (("virtual", "virtual worlds"), ("audit", "audits")):
        lines = [
            f"{report.nodeid}: {text}"
            for report in terminalreporter.stats.get("passed", ())
            for name, text in report.user_properties
            if name == property_name and report.when == "call"
        ]
        if lines:
            terminalreporter.section(title)
        for line in lines[:_MOST_LINES]:
            terminalreporter.write_line(line)
        if len(lines) > _MOST_LINES:
            terminalreporter.write_line(f"... and {len(lines) - _MOST_LINES:,} more")


_MOST_LINES = 20


def _add_audits(report: pytest.TestReport) -> None:
    """Keep what the last audit of a test rests on, which `assert_no_violations` let pass."""
    module = sys.modules.get("purgatory.pipeline.jobs.audit.findings")
    if module is None or report.when != "call":
        return
    if module.passed and report.passed:
        count = len(module.passed)
        more = f" (the last of {count} audits)" if count > 1 else ""
        report.user_properties.append(("audit", module.passed[-1] + more))
    module.passed.clear()


def _typed_id(item: pytest.Item) -> str:
    """The id of a test relative to the folder in which pytest was started."""
    config = item.config
    path, colons, rest = item.nodeid.partition("::")
    try:
        return relpath(config.rootpath / path, config.invocation_params.dir) + colons + rest
    except ValueError:  # another drive
        return item.nodeid


def _takes_world(item: pytest.Item) -> bool:
    """Whether a test takes the fixture `world` of this module, or one that is based on it."""
    info = getattr(item, "_fixtureinfo", None)
    found = () if info is None else info.name2fixturedefs.get("world", ())
    return any(getattr(one.func, "__module__", None) == __name__ for one in found)


def _is_world(found: object) -> TypeGuard[World]:
    """Whether a value is a world; called for every test, and thus without imports."""
    module = sys.modules.get("purgatory.virtual.world")
    return module is not None and isinstance(found, module.World)


@contextmanager
def _one_line_import_errors(fixture: str = "kafka_cluster") -> Iterator[None]:
    """Fail a test with one line, if the extra is missing, or another package has the name."""
    from purgatory.cli.extras import missing_extra
    from purgatory.import_names import check_purgatory

    try:
        check_purgatory()
        yield
    except ImportError as error:
        advice = missing_extra("cluster", error.name, f"the fixture {fixture}")
        if advice is None and isinstance(error, ModuleNotFoundError):
            raise
        pytest.fail(advice or str(error), pytrace=False)
