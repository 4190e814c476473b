"""Makes the failures of tests in worlds smaller, when all tests have run, for pytest.

It does so where results are told, which with pytest-xdist is not where tests run.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from purgatory.virtual.repeated_test import HASH_SEED
from purgatory.virtual.repeating import OutOfTimeError, Repeating
from purgatory.virtual.smaller_failures import NotReproducedError, smaller_failures
from purgatory.virtual.world_failure import WorldFailure

REPORTED = "world_failure"
"""The attribute of a report that has the failure, as a text, so that it gets from a worker here."""

SECTION = "virtual world, shrunk"

_NONE_LIES_ANYWHERE: Final = sys.version_info < (3, 12)
"""Whether each process orders sets that `None` is a part of anew, whatever `PYTHONHASHSEED` is."""

_REPETITIONS: Final = 3 if _NONE_LIES_ANYWHERE else 1


def shrink_failures(config: pytest.Config, terminal: Any, limit_s: float) -> None:
    """Make the first failure of each test smaller, and put what is left of it into its report.

    Args:
        config: of pytest.
        terminal: pytest's reporter, which has the reports.
        limit_s: how long that may take in all.
    """
    reports = list(_first_of_each(terminal.stats.get("failed", ())))
    if not reports:
        return
    with suppress(KeyboardInterrupt), TemporaryDirectory() as scratch:
        options = options_of(config, Path(scratch))
        repeating = Repeating(options, Path(config.invocation_params.dir), limit_s)
        for report in reports:
            terminal.ensure_newline()
            terminal.write_line(f"shrinking {report.nodeid}, for at most {repeating.left_s:.3g} s")
            found = WorldFailure.from_text(getattr(report, REPORTED))
            told, goes_on = _shrunk(found, repeating, limit_s)
            report.sections.append((SECTION, told))
            if not goes_on:
                return


def _shrunk(found: WorldFailure, repeating: Repeating, limit_s: float) -> tuple[str, bool]:
    """What is told of a failure that was made as small as it could be; whether to go on."""
    best: WorldFailure | None = None
    end, before = "", repeating.attempts
    try:
        for failure in smaller_failures(found, repeating.attempt, _REPETITIONS):
            best = failure
    except NotReproducedError as error:
        return _not_reproduced(error, repeating.said), True
    except OutOfTimeError:
        end = f", then the time was up: --virtual-shrink-s {5 * limit_s:g} looks for longer"
    except KeyboardInterrupt:
        end = ", then it was interrupted"
    except OSError as error:
        end = f", then no process could be started: {error}"
    count = repeating.attempts - before
    attempts = f"{count} attempt{'' if count == 1 else 's'}{end}"
    if best is None:
        return f"not made smaller ({attempts})", not end
    return f"{_summary(found, best)} ({attempts})\n{best.told}", not end


def options_of(config: pytest.Config, scratch: Path) -> list[str]:
    """Return what an attempt is given of what this pytest was: where it finds tests and plugins.

    What this pytest writes, such as reports and a cache, the attempts write into ``scratch``.
    """
    option = config.option
    words = ["--virtual-no-shrink", "--rootdir", str(config.rootpath), "-q", "--tb=short"]
    words += ["-m", "", "-k", ""]  # the test is named, and not to be left out by the ini file
    if config.inipath is not None:
        words += ["-c", str(config.inipath)]
    for plugin in option.plugins:
        words += ["-p", plugin]
    for setting in option.override_ini or ():
        words += ["-o", setting]
    if option.confcutdir:
        words += ["--confcutdir", option.confcutdir]
    words.append(f"--import-mode={option.importmode}")
    if config.pluginmanager.hasplugin("cacheprovider"):
        words += ["-o", f"cache_dir={scratch}"]
    if getattr(option, "numprocesses", None) is not None:
        words += ["-n", "0"]
    if getattr(option, "xmlpath", None):
        words += ["--junit-xml", str(scratch / "junit.xml")]
    if hasattr(option, "no_cov"):
        words.append("--no-cov")
    return words


def _first_of_each(reports: Sequence[Any]) -> Iterator[Any]:
    """The first failure in a world of each test, whatever its seed."""
    seen = set()
    for report in reports:
        test = re.sub(r"seed-?\d+", "", report.nodeid)
        if getattr(report, REPORTED, None) and test not in seen:
            seen.add(test)
            yield report


def _summary(found: WorldFailure, best: WorldFailure) -> str:
    """What of the failure was made smaller."""
    planned, left = (one.planned - len(one.test.without) for one in (found, best))
    became_plain = best.test.plain_network and not found.test.plain_network
    if left == planned and not became_plain:
        return "no smaller failure was found"
    causes = [f"with {left or 'none'} of {planned} faults"] if planned else []
    if became_plain:
        causes.append("on a plain network")
    return f"it fails {', '.join(causes)}, too"


def _not_reproduced(error: Exception, said: str) -> str:
    advice = [] if os.environ.get(HASH_SEED, "").isdecimal() else [f"set {HASH_SEED}"]
    if _NONE_LIES_ANYWHERE:
        advice.append("before Python 3.12, have addresses be the same by setarch -R")
    order = f" ({'; '.join(advice)})" if advice else ""
    return (
        f"not reproduced: repeated in a process of its own, {error}.\n"
        f"So something decides that is not the seed's: the order of sets{order}, what other tests "
        "left behind in this process or in files, or chance or a clock that is not the world's.\n"
        f"The attempt printed at its end:\n{said}"
    )
