"""Tests in Go that talk to a cluster: their names, their runs, and what became of each."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.suites.outcomes import Outcome, Verdict, read_expected

_VERDICTS = {"pass": Verdict.PASSED, "fail": Verdict.FAILED, "skip": Verdict.SKIPPED}
_TEST = re.compile(r"func (Test\w+)\(\w+ \*testing\.T\)")


class Package(NamedTuple):
    """A package with tests.

    Args:
        suite: the name and version that outcomes have.
        folder: of the package.
        options: of `go test`: tags, tests that are left out.
        environment: variables of the tests.
        log: a file that their output is added to.
    """

    suite: str
    folder: Path
    options: Sequence[str]
    environment: Mapping[str, str]
    log: Path


def names_in(folder: Path, files: str, body: str) -> list[str]:
    """Return the names of a package's tests.

    Args:
        folder: of the package.
        files: a pattern of the files' names.
        body: a regular expression that is in the tests.
    """
    names = []
    for path in sorted(folder.glob(files)):
        functions = re.split(r"^(?=func )", path.read_text(encoding="utf-8"), flags=re.M)
        for function in functions[1:]:
            test = _TEST.match(function)
            if test and re.search(body, function):
                names.append(test[1])
    return names


def run_tests(package: Package, names: Collection[str]) -> Iterator[Outcome]:
    """Yield the outcomes of tests and of their parts; tests that fail and are not expected to are
    tried once more.

    Tests run in one process. Where it ends in the middle, those that it did not begin run in
    another one.
    """
    left = [*names]
    failed: list[Outcome] = []
    while left:
        began = set()
        for one in read_events(package.suite, _run(package, f"^({'|'.join(left)})$")):
            began.add(_top(one.case))
            if one.verdict is Verdict.FAILED:
                failed.append(one)
            else:
                yield one
        if not began:
            failed += [_not_run(package, name) for name in left]
            break
        left = [name for name in left if name not in began]
    known = read_expected()
    again = [one.case for one in failed if one.case not in known]
    if again:
        chosen = "|".join(chosen_by(case) for case in again)
        second = {one.case: one for one in read_events(package.suite, _run(package, chosen))}
        failed = [second.get(one.case, one)._replace(tries=2) for one in failed]
    yield from failed


def _top(case: str) -> str:
    return case.partition("/")[0]


def _not_run(package: Package, name: str) -> Outcome:
    return Outcome(package.suite, name, Verdict.FAILED, 0.0, f"it did not run: {package.log}")


def chosen_by(case: str) -> str:
    """Return the pattern by which `go test -run` chooses a test, or one of its parts."""
    return "/".join(f"^{re.escape(part)}$" for part in case.split("/"))


def _run(package: Package, chosen: str) -> Iterator[str]:
    """Yield the lines that `go test -json` prints."""
    command = ["go", "test", "-json", "-count=1", "-vet=off", "-timeout=60m", "-run", chosen]
    with (
        package.log.open("a", encoding="utf-8") as log,
        subprocess.Popen(
            [*command, *package.options, "."],
            cwd=package.folder,
            env={**os.environ, **package.environment},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                yield line
        finally:
            # And the tests themselves, which `go` would leave.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


def read_events(suite: str, lines: Iterable[str]) -> Iterator[Outcome]:
    """Yield the outcomes in the output of `go test -json`: those of tests without parts, of the
    parts of the others, and of a test that failed though its parts did not."""
    said: dict[str, list[str]] = {}
    failed: set[str] = set()
    with_parts: set[str] = set()
    for line in lines:
        event = json.loads(line) if line.startswith("{") else {}
        case, action = event.get("Test"), event.get("Action")
        if case is None:
            continue
        if action == "run":
            said[case] = []
            with_parts.update(_parents(case))
        elif action == "output":
            said.setdefault(case, []).append(event["Output"])
        elif action in _VERDICTS:
            verdict = _VERDICTS[action]
            of_parts = case in with_parts and (verdict is not Verdict.FAILED or case in failed)
            output = said.pop(case, [])
            if verdict is Verdict.FAILED:
                failed.update(_parents(case))
            if not of_parts:
                why = "" if verdict is Verdict.PASSED else why_of(output)
                yield Outcome(suite, case, verdict, event.get("Elapsed", 0.0), why)
    for case, output in said.items():
        if case not in with_parts:
            yield Outcome(suite, case, Verdict.FAILED, 0.0, why_of(output) or "its process ended")


def _parents(case: str) -> list[str]:
    parts = case.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def why_of(output: Sequence[str]) -> str:
    """Return the last line of a file of tests in a test's output: "file_test.go:7: message"."""
    lines = [line.strip() for line in output]
    told = [line for line in lines if re.match(r"\S+\.go:\d+: ", line)]
    panics = [line for line in lines if line.startswith("panic: ")]
    return (panics or told or [""])[-1]
