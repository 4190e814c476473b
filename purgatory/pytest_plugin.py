"""The pytest fixtures ``kafka_cluster`` and ``world``: for the tests of Kafka clients.

    def test_my_producer(kafka_cluster):
        with kafka_cluster.fault.lose_responses(broker=1, count=1):
            ...

    def test_nothing_is_lost(kafka_cluster):
        ...
        kafka_cluster.audit(expect=["no-loss"]).assert_no_violations()

Three brokers on ports that the system chooses, one cluster for each test. A test, class or module
that wants another kind overrides ``kafka_cluster_config``; one that floods its cluster, and audits
nothing, has ``kafka_cluster_recorded`` return False.

    @pytest.mark.virtual(seeds=50)
    async def test_in_virtual_time(world):
        ...

A test that takes `world` runs in virtual time, with ``@pytest.mark.virtual`` once for each of some
seeds; a coroutine function runs on the world's loop. ``--virtual-seeds N`` says how many seeds,
``--virtual-seed S`` which one, ``--virtual-without 3,7`` which faults don't happen, and
``--virtual-plain-network`` makes the network simple. A failure tells its seed, what went wrong,
what happened last, and how to repeat it; and in the end the first failure of each test is repeated
with fewer faults, as long as it fails, at most for ``--virtual-shrink-s``.
"""

from __future__ import annotations

import sys
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import isasyncgenfunction, iscoroutinefunction
from math import inf
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import pytest

if TYPE_CHECKING:
    from purgatory.cluster import ClusterConfig, ThreadedCluster
    from purgatory.virtual import World


@pytest.fixture
def kafka_cluster_config() -> ClusterConfig:
    """What the cluster of a test is to be: groups come together without delay."""
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
    """Whether the cluster of a test keeps what happens, so that the test may audit it."""
    return True


@pytest.fixture
def kafka_cluster(
    kafka_cluster_config: ClusterConfig, kafka_cluster_recorded: bool
) -> Iterator[ThreadedCluster]:
    """A cluster that runs while the test does."""
    with _one_line_import_errors():
        from purgatory.cluster import ThreadedCluster
    with ThreadedCluster(kafka_cluster_config, recorded=kafka_cluster_recorded) as cluster:
        yield cluster


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of virtual worlds."""
    group = parser.getgroup("purgatory", "Kafka clients in virtual time")
    group.addoption(
        "--virtual-seeds", type=_at_least_one, metavar="N", help="run marked tests with N seeds"
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
        "--virtual-shrink-s",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="look for so long for less with which failed tests in worlds fail, too (default: 60)",
    )
    group.addoption(
        "--virtual-no-shrink", action="store_true", help="don't look for smaller failures"
    )
    group.addoption("--virtual-attempt", metavar="FILE", help=SUPPRESS)


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(text)
    return int(text)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < inf:
        raise ValueError(text)
    return seconds


def _fault_numbers(text: str) -> Sequence[int]:
    from purgatory.virtual.planned_faults import parse_numbers

    try:
        return parse_numbers(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, and what makes failures smaller."""
    config.addinivalue_line(
        "markers",
        "virtual(seeds=20): run the test, which takes the fixture `world`, with so many seeds",
    )
    option = config.getoption
    is_worker = hasattr(config, "workerinput")  # xdist's; its controller has the results
    if not (is_worker or option("--virtual-no-shrink") or option("--virtual-attempt")):
        config.pluginmanager.register(_Shrinking(config), "purgatory-shrinking")


class _Shrinking:
    """Has failures in worlds made smaller when all tests have run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ends = False

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note that somebody wants an end; what xdist raises after -x is an heir of Ctrl-C."""
        self._ends = excinfo.type in (KeyboardInterrupt, pytest.exit.Exception)

    def pytest_sessionfinish(self) -> None:
        """Make failures smaller before they are printed, if there are any."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or self._ends or self._config.option.tbstyle == "no":
            return
        if any(hasattr(one, "world_failure") for one in terminal.stats.get("failed", ())):
            from purgatory.virtual.shrinking import shrink_failures

            limit_s = self._config.getoption("--virtual-shrink-s")
            shrink_failures(self._config, terminal, limit_s)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a marked test its seeds."""
    mark = metafunc.definition.get_closest_marker("virtual")
    if mark is None:
        return
    name = metafunc.definition.nodeid
    if "world" not in metafunc.fixturenames:
        raise pytest.UsageError(f"{name}: a test marked as virtual takes the fixture `world`")
    if mark.args or set(mark.kwargs) - {"seeds"}:
        raise pytest.UsageError(f"{name}: the mark is virtual(seeds=50), with nothing else")
    from purgatory.virtual.seeded_tests import seeds_of

    option = metafunc.config.getoption
    try:
        seeds = seeds_of(
            mark.kwargs.get("seeds"), option("--virtual-seeds"), option("--virtual-seed")
        )
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"{name}: {error}") from None
    metafunc.parametrize("world", seeds, indirect=True, ids=[f"seed{one}" for one in seeds])


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A virtual world that is entered while the test runs."""
    from purgatory.virtual.seeded_tests import keep_pytest_clocks
    from purgatory.virtual.world import World

    keep_pytest_clocks()
    option = request.config.getoption
    seed = getattr(request, "param", option("--virtual-seed") or 0)
    without, plain = option("--virtual-without"), option("--virtual-plain-network")
    with World(seed, without=without, plain_network=plain) as world:
        request.node.stash[_WORLD] = world
        yield world


_WORLD = pytest.StashKey[Any]()
"""The world of a test, while it is set up, runs, and is torn down."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep pytest-asyncio from running a test of a world on a loop of its own."""
    if type(item).__module__.startswith("pytest_asyncio") and _takes_world(item):
        item.__class__ = _plain_kind(type(item))


@cache
def _plain_kind(kind: type[pytest.Item]) -> type[pytest.Item]:
    """Return a kind of test that runs as others do, and is still one to who asks for its kind."""
    own = {"setup": pytest.Function.setup, "runtest": pytest.Function.runtest}
    metaclass: Any = type(kind)
    plain: type[pytest.Item] = metaclass(f"{kind.__name__}InWorld", (kind,), own)
    return plain


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    """Run a test that is a coroutine function in its world; to others it is a plain one."""
    world, test = pyfuncitem.funcargs.get("world"), pyfuncitem.obj
    if not (_is_world(world) and iscoroutinefunction(test)):
        return (yield)
    from purgatory.virtual.seeded_tests import in_world

    pyfuncitem.obj = in_world(world, test)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test


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
    """Tell of a failure in a world how to repeat it."""
    report = yield
    world = item.stash.get(_WORLD, None)
    if report.failed and _is_world(world):
        from purgatory.virtual.failure_report import world_failure

        error = None if call.excinfo is None else call.excinfo.value
        failure = world_failure(world, _typed_id(item), error)
        report.sections.append(("virtual world", failure.report))
        if call.when != "call":
            return report
        report.world_failure = failure.to_json()  # an attribute gets from xdist's workers, too
        if attempt := item.config.getoption("--virtual-attempt"):
            Path(attempt).write_text(failure.to_json())
    return report


def _typed_id(item: pytest.Item) -> str:
    """The id of a test as it is given where pytest was started, which may be another folder."""
    config = item.config
    path, colons, rest = item.nodeid.partition("::")
    try:
        return relpath(config.rootpath / path, config.invocation_params.dir) + colons + rest
    except ValueError:  # another drive
        return item.nodeid


def _takes_world(item: pytest.Item) -> bool:
    """Whether a test takes the fixture `world` of this module, or one that is made of it."""
    info = getattr(item, "_fixtureinfo", None)
    found = () if info is None else info.name2fixturedefs.get("world", ())
    return any(getattr(one.func, "__module__", None) == __name__ for one in found)


def _is_world(found: object) -> TypeGuard[World]:
    """Whether that is a world of ours; asked of every test, so nothing is imported for it."""
    module = sys.modules.get("purgatory.virtual.world")
    return module is not None and isinstance(found, module.World)


@contextmanager
def _one_line_import_errors() -> Iterator[None]:
    """Have a test fail by one line where the extra is missing, or the package is not ours."""
    from purgatory.cli.extras import missing_extra
    from purgatory.import_names import check_purgatory

    try:
        check_purgatory()
        yield
    except ImportError as error:
        advice = missing_extra("cluster", error.name, "the fixture kafka_cluster")
        if advice is None and isinstance(error, ModuleNotFoundError):
            raise
        pytest.fail(advice or str(error), pytrace=False)
