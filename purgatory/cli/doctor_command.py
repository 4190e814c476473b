"""The command ``purgatory doctor``: the state of this machine, and advice on missing parts.

The command needs the standard library alone: it also runs without the extra ``cli``.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import socket
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

from purgatory import __version__
from purgatory.settings.addresses import CLUSTER_PORT, CONTROL_PORT

_DISTRIBUTION = "kafka-purgatory"
_EXTRAS_OF_DEVELOPERS = ("core-tests", "dev", "docs", "release")
_MIN_OPEN_FILES = 4_096
"""The least number of open files; a broker uses one per connection."""


class Check(NamedTuple):
    """One line of the page.

    Attributes:
        name: of the checked part.
        found: the part's state.
        advice: the remedy; empty if none is needed.
    """

    name: str
    found: str
    advice: str = ""


def doctor() -> None:
    """Check this machine: Python, native core, Java, Spark, extras, ports, open files."""
    checks = [
        *_python(),
        *_java(),
        *_extras(),
        *_ports(),
        _open_files(),
    ]
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = "!" if check.advice else " "
        print(f"{mark} {check.name:{width}}  {check.found}")
        if check.advice:
            print(f"  {'':{width}}  -> {check.advice}")
    if not any(check.advice for check in checks):
        print("No problem was found.")


def _python() -> Iterator[Check]:
    from timer import NATIVE

    yield Check(_DISTRIBUTION, f"{__version__} in {Path(__file__).parents[1]}")
    yield Check("Python", f"{platform.python_version()} at {sys.executable}")
    if NATIVE:
        yield Check("native core", "yes")
    else:
        yield Check(
            "native core",
            "no: the core runs in pure Python, which is slower",
            "install a C compiler, then: pip install --force-reinstall --no-deps .",
        )


def _java() -> Iterator[Check]:
    spark = _version_of("pyspark")
    if spark is None:
        yield Check("Spark", "no; --engine duckdb does without it")
        return
    from purgatory.pipeline.engines.spark.java import find_java_home, java_version
    from purgatory.pipeline.errors import SessionError

    yield Check("Spark", spark)
    try:
        home = find_java_home(os.environ)
        yield Check("Java", f"{java_version(home / 'bin' / 'java')} in {home}")
    except SessionError as error:
        found, _, advice = str(error).partition(". ")
        yield Check("Java", found, f"{advice}; --engine duckdb does without it")


def _extras() -> Iterator[Check]:
    """Yield a line for each extra: whether all that it needs is installed."""
    needed: dict[str, list[str]] = {}
    try:
        requirements = requires(_DISTRIBUTION) or ()
    except PackageNotFoundError:
        yield Check(_DISTRIBUTION, "not installed", "pip install . from its clone")
        return
    for requirement in requirements:
        name = re.match(r"[\w.-]+", requirement)
        for extra in re.findall(r"extra == ['\"]([\w-]+)['\"]", requirement):
            if name is not None and extra not in _EXTRAS_OF_DEVELOPERS:
                needed.setdefault(extra, []).append(name[0])
    for extra, names in sorted(needed.items()):
        missing = [name for name in names if _version_of(name) is None]
        if not missing:
            yield Check(f"extra {extra}", "installed")
        else:
            yield Check(
                f"extra {extra}",
                f"no ({_some(missing)}): pip install '{_DISTRIBUTION}[{extra}]'",
            )


def _some(names: Sequence[str]) -> str:
    return f"{names[0]} is missing" if len(names) == 1 else f"{len(names)} packages are missing"


def _version_of(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _ports() -> Iterator[Check]:
    for port, use in ((CLUSTER_PORT, "cluster"), (CONTROL_PORT, "control of a cluster")):
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind(("127.0.0.1", port))
            except OSError as error:
                option = "--port" if port == CLUSTER_PORT else "--control-port"
                yield Check(
                    f"port {port}",
                    f"in use ({error.strerror})",
                    f"purgatory cluster {option} N uses another; 0 uses a free one",
                )
            else:
                yield Check(f"port {port}", f"free ({use})")


def _open_files() -> Check:
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit >= _MIN_OPEN_FILES:
        return Check("open files", f"at most {limit:,}")
    if most != resource.RLIM_INFINITY and most < _MIN_OPEN_FILES:
        advice = f"have an administrator raise the hard limit, {most:,}, to {_MIN_OPEN_FILES:,}"
    else:
        advice = f"ulimit -n {_MIN_OPEN_FILES}"
    return Check("open files", f"at most {limit:,}: some thousand connections need more", advice)
