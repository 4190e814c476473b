"""Tests of kombu, FastStream and quixstreams that talk to a cluster, each project's on its pytest.

A copy of a project's tests, with the address of a broker in place of the usual one, runs in an
environment that has the project's release and what its tests need.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.suites.cluster_process import running_cluster
from tests.suites.outcomes import Outcome, Verdict, read_junit
from tests.suites.sources import (
    BUILD,
    FASTSTREAM,
    KOMBU,
    QUIXSTREAMS,
    checkout,
    environment_with,
    python_source,
)

PLUGIN = "quixstreams_containers"
_QUIX = "tests/test_quixstreams"
_LIMIT_S = 3_600
_BROKER = "--brokers 1 --first-broker-id 0 --group-delay 0s --group-min-session 1s"


class Project(NamedTuple):
    """A project, its tests, and what they need.

    Args:
        name: of its package.
        version: of its package, and of its tests.
        source: gives the folder with its tests.
        needed: packages, beside its own, with their versions.
        copied: what of the folder the tests need.
        options: of pytest: the chosen tests.
        replaced: texts in the copy, and what stands there instead: it may have {host} and {port}.
    """

    name: str
    version: str
    source: Callable[[], Path]
    needed: tuple[str, ...]
    copied: tuple[str, ...]
    options: tuple[str, ...]
    replaced: Mapping[str, str] = {}

    @property
    def title(self) -> str:
        """The name and version that outcomes have."""
        return f"{self.name} {self.version}"


PROJECTS = {
    one.name: one
    for one in (
        Project(
            name="kombu",
            version=KOMBU,
            source=partial(python_source, "kombu", KOMBU),
            needed=("confluent-kafka==2.16.1", "pytest==9.0.2", "pytest-timeout==2.4.0"),
            copied=("t", "setup.cfg"),
            options=("t/integration/test_kafka.py",),
            replaced={"'localhost'": "'{host}'", "'9092'": "'{port}'"},
        ),
        Project(
            name="faststream",
            version=FASTSTREAM,
            source=partial(checkout, "faststream", FASTSTREAM, "ag2ai/faststream", FASTSTREAM),
            needed=(
                f"faststream[kafka,confluent,cli,otel,prometheus]=={FASTSTREAM}",
                "dirty-equals==0.11",
                "fastapi==0.140.0",
                "freezegun==1.5.5",
                "httpx==0.28.1",
                "pydantic-settings<3",
                "pytest==9.0.3",
                "pytest-asyncio==1.3.0",
                "pytest-rerunfailures==16.7",
                "pytest-timeout==2.4.0",
            ),
            # The package itself has the address, too: its default.
            copied=("faststream", "tests", "pyproject.toml"),
            options=(
                *("-m", "connected", "--ignore-glob=*/test_misconfigure.py"),
                *("tests/brokers/kafka", "tests/brokers/confluent"),
                *("tests/prometheus/kafka", "tests/prometheus/confluent"),
                *("tests/opentelemetry/kafka", "tests/opentelemetry/confluent"),
            ),
            replaced={
                '"localhost"': '"{host}:{port}"',
                '"localhost:9092"': '"{host}:{port}"',
                "AIOKafkaAdminClient()": 'AIOKafkaAdminClient(bootstrap_servers="{host}:{port}")',
            },
        ),
        Project(
            name="quixstreams",
            version=QUIXSTREAMS,
            source=partial(
                checkout, "quixstreams", QUIXSTREAMS, "quixio/quix-streams", f"v{QUIXSTREAMS}"
            ),
            needed=(
                *("fastavro<2", "pandas<3", "protobuf<7", "psycopg2-binary<3", "redis<6"),
                *("pytest==9.0.2", "pytest-timeout==2.4.0"),
            ),
            copied=("tests", "pyproject.toml"),
            # Its sinks are other systems, each with a client of its own.
            options=("-p", PLUGIN, f"--ignore={_QUIX}/test_sinks", _QUIX),
        ),
    )
}


def on_ours(log: Path) -> AbstractContextManager[str]:
    """Run a cluster of one broker while the block runs; give its address."""
    return running_cluster(log, *_BROKER.split())


def run(
    name: str,
    only: str,
    short: bool,
    on: Callable[[Path], AbstractContextManager[str]] = on_ours,
) -> Iterator[Outcome]:
    """Yield the outcome of each case, once all ran; failed ones are tried once more.

    Args:
        name: of the project.
        only: an expression for pytest's option `-k`.
        short: the short selection, which has no time for these.
        on: runs a broker, which logs to a file, and gives its address.
    """
    if short:
        return
    project = PROJECTS[name]
    source = project.source()
    python = environment_of(name)
    with on(BUILD / f"{name}-broker.log") as servers:
        folder = _copy(project, source, servers)
        outcomes = _run(project, python, folder, servers, "-k", only)
        if any(one.verdict is Verdict.FAILED for one in outcomes.values()):
            again = _run(project, python, folder, servers, "--last-failed", "-k", only)
            outcomes.update({case: one._replace(tries=2) for case, one in again.items()})
    yield from outcomes.values()


def environment_of(name: str) -> Path:
    """Return the Python of a project's environment."""
    project = PROJECTS[name]
    return environment_with(project.name, project.version, *project.needed)


def _copy(project: Project, source: Path, servers: str) -> Path:
    folder = BUILD / f"{project.name}-copy"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in project.copied:
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name)
        else:
            shutil.copy(source / name, folder / name)
    shutil.copy(Path(__file__).with_name(f"{PLUGIN}.py"), folder)
    for path in folder.rglob("*.py") if project.replaced else ():
        before = path.read_text(encoding="utf-8")
        after = put_address(before, project.replaced, servers)
        if after != before:
            path.write_text(after, encoding="utf-8")
    return folder


def put_address(text: str, replaced: Mapping[str, str], servers: str) -> str:
    """Return a text with a broker's address in the places of others."""
    host, _, port = servers.rpartition(":")
    for before, after in replaced.items():
        text = text.replace(before, after.format(host=host, port=port))
    return text


def _run(
    project: Project, python: Path, folder: Path, servers: str, *chosen: str
) -> dict[str, Outcome]:
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    log = BUILD / f"{project.name}.log"
    options = [
        "-q",
        "-W",
        "ignore",
        "-o",
        "log_cli=false",
        "--timeout",
        "120",
        f"--junitxml={report}",
    ]
    with log.open("a", encoding="utf-8") as output:
        subprocess.run(
            [str(python), "-m", "pytest", *options, *project.options, *chosen],
            cwd=folder,
            env={**os.environ, "BOOTSTRAP_SERVERS": servers, "PYTHONPATH": ""},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT_S,
            check=False,
        )
    if not report.exists():
        why = f"pytest ended without a report: {log}"
        return {project.name: Outcome(project.title, project.name, Verdict.FAILED, 0.0, why)}
    outcomes: dict[str, Outcome] = {}
    for one in (each.outcome(project.title) for each in read_junit(report)):
        # The last of a case is the worst: what its teardown said.
        outcomes[one.case] = one
    return outcomes
