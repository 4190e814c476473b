"""librdkafka's own tests, those of them that talk to a cluster, each in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.suites.cluster_process import running_cluster
from tests.suites.kafka_tools import write_tools
from tests.suites.outcomes import Outcome, Verdict, read_expected
from tests.suites.sources import BUILD, LIBRDKAFKA, ROOT, build_librdkafka, librdkafka_source

NAME = f"librdkafka {LIBRDKAFKA}"
SHORT = ("0001", "0005", "0008", "0011", "0012", "0013", "0017", "0021", "0022", "0029", "0031")
"""The numbers of the short selection: producers, consumers, codecs, offsets."""

_LIMIT_S = 400
_VERDICTS = {"PASSED": Verdict.PASSED, "SKIPPED": Verdict.SKIPPED}
_CLUSTER = ("--default-partitions", "4", "--memory-mb", "4096")
_SCENARIOS = {"default": "--auto-create", "noautocreate": "--no-auto-create"}


class Case(NamedTuple):
    """One test: its name, which begins with its number, and the kind of cluster that it wants."""

    name: str
    scenario: str

    @property
    def number(self) -> str:
        """By which it is chosen."""
        return self.name[:4]


def cases_in(text: str) -> list[Case]:
    """Return the cases of `test.c` that talk to a cluster and run by themselves."""
    found = []
    for entry in re.split(r"^ {4}_TEST\(", text, flags=re.M)[1:]:
        name, flags = re.split(r"[,)]", entry, maxsplit=2)[:2]
        if re.search(r"TEST_F_(LOCAL|MANUAL|KNOWN_ISSUE)\b", flags):
            continue
        scenario = re.search(r'\.scenario = "(\w+)', entry)
        found.append(Case(name, scenario[1] if scenario else "default"))
    return found


def run(only: str, short: bool) -> Iterator[Outcome]:
    """Yield what becomes of each case; one that fails and is not expected to is
    tried once more.

    Args:
        only: a regular expression that is in the names of the cases that run.
        short: run the short selection.
    """
    tests = build_librdkafka(librdkafka_source())
    cases = [
        case
        for case in cases_in((tests / "test.c").read_text(encoding="utf-8"))
        if re.search(only, case.name) and (not short or case.number in SHORT)
    ]
    for scenario, option in _SCENARIOS.items():
        wanted = [case for case in cases if case.scenario == scenario]
        if wanted:
            log = BUILD / f"cluster-{scenario}.log"
            with running_cluster(log, *_CLUSTER, option) as servers:
                for number in dict.fromkeys(case.number for case in wanted):
                    of_number = [case for case in wanted if case.number == number]
                    yield from _tried_twice(tests, servers, of_number)


def _tried_twice(tests: Path, servers: str, cases: Sequence[Case]) -> Iterator[Outcome]:
    outcomes = _run(tests, servers, cases)
    known = read_expected()
    if any(one.verdict is Verdict.FAILED and one.case not in known for one in outcomes):
        outcomes = [one._replace(tries=2) for one in _run(tests, servers, cases)]
    yield from outcomes


def _run(tests: Path, servers: str, cases: Sequence[Case]) -> list[Outcome]:
    """Run the cases of one number in one process."""
    number = cases[0].number
    log, report, settings = (
        BUILD / f"librdkafka-{number}.{kind}" for kind in ("log", "json", "conf")
    )
    report.unlink(missing_ok=True)
    settings.write_text(
        f"metadata.broker.list={servers}\ntest.timeout.multiplier=2\ntest.topic.random=true\n",
        encoding="utf-8",
    )
    environment = {
        **{name: value for name, value in os.environ.items() if name != "CI"},
        "BROKERS": servers,
        "KAFKA_PATH": str(write_tools(BUILD / "kafka", ROOT)),
        "LD_LIBRARY_PATH": f"{tests.parent / 'src'}:{tests.parent / 'src-cpp'}",
        "RDKAFKA_TEST_CONF": str(settings),
        "TESTS": number,
        "TEST_KAFKA_VERSION": "3.9.0",
        "TEST_REPORT": str(report),
        "TEST_SCENARIO": cases[0].scenario,
    }
    began_s = time.monotonic()
    with log.open("wb") as output:
        try:
            code = subprocess.run(
                ["./test-runner", "-p1", "-L"],
                cwd=tests,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_LIMIT_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    took_s = time.monotonic() - began_s
    said = log.read_text(encoding="utf-8", errors="replace")
    found = json.loads(report.read_text(encoding="utf-8"))["tests"] if report.exists() else {}
    return [_outcome(case, found.get(case.name), code, took_s, said) for case in cases]


def _outcome(
    case: Case, told: dict[str, object] | None, code: int, took_s: float, said: str
) -> Outcome:
    if told is None:
        return Outcome(NAME, case.name, Verdict.FAILED, took_s, f"it ended with {code}, no report")
    verdict = _VERDICTS.get(str(told["state"]), Verdict.FAILED)
    why = "" if verdict is Verdict.PASSED else why_not(said)
    return Outcome(NAME, case.name, verdict, took_s, why)


def why_not(said: str) -> str:
    """Return what a test said of its failure or of why it was skipped, in one line."""
    plain = re.sub(r"\x1b\[\d*m", "", said)
    failed = re.search(r"^### Test .* failed at (\S+) at .*?\n(.*)", plain, re.M)
    skipped = re.search(r"(?:SKIPPING TEST|skip\w*): (.*)", plain, re.I)
    if failed:
        return f"{failed[1]} {failed[2]}"
    return skipped[1] if skipped else ""
