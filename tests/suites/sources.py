"""The sources of other projects' suites: Debian's source package, and source distributions.

Sources are kept in `build/suites`, outside the project. A folder that is there already is used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "suites"

LIBRDKAFKA = "2.0.2"
KAFKA_PYTHON = "3.0.12"
AIOKAFKA = "0.14.0"
QUIXSTREAMS = "3.25.0"
FASTSTREAM = "0.7.4"
KOMBU = "5.7.0"
FRANZ_GO = "1.22.3"
SARAMA = "1.61.1"
KAFKA_GO = "0.4.51"
CONFLUENT_KAFKA_GO = "2.11.1"
TOXIPROXY = "2.5.0"

_APT_SETTINGS = Path("/etc/apt")
_TO_BUILD = "dpkg-dev g++ libssl-dev make zlib1g-dev"


class MissingError(Exception):
    """A tool of the system or a source is missing; the message says how to get it."""


def librdkafka_source() -> Path:
    """Return the folder with librdkafka's sources.

    Raises:
        MissingError: this is no Debian, or its tools to build are missing, or its archive has
            another version.
    """
    folder = BUILD / f"librdkafka-{LIBRDKAFKA}"
    if folder.is_dir():
        return folder
    if any(shutil.which(tool) is None for tool in ("apt-get", "dpkg-source", "g++", "make")):
        raise MissingError(f"on Debian or Ubuntu: apt-get install {_TO_BUILD}")
    BUILD.mkdir(parents=True, exist_ok=True)
    options = _private_apt(BUILD / "apt")
    _run(["apt-get", "-qq", *options, "update"], BUILD)
    _run(["apt-get", "-qq", *options, "source", "librdkafka"], BUILD)
    if not folder.is_dir():
        there = ", ".join(one.name for one in BUILD.glob("librdkafka-*/"))
        raise MissingError(f"the archive has {there}, and the suite is of {folder.name}")
    return folder


def _private_apt(folder: Path) -> list[str]:
    """Return options by which apt gets sources from the machine's archives, with lists and settings
    of its own."""
    for place in ("parts", "lists/partial", "cache/archives/partial"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    for path in [_APT_SETTINGS / "sources.list", *(_APT_SETTINGS / "sources.list.d").glob("*.*")]:
        if path.suffix in (".list", ".sources") and path.is_file():
            text = path.read_text(encoding="utf-8")
            as_source = re.sub(r"^Types:.*", "Types: deb-src", text, flags=re.M)
            as_source = re.sub(r"^deb ", "deb-src ", as_source, flags=re.M)
            (folder / "parts" / path.name).write_text(as_source, encoding="utf-8")
    places = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": folder / "parts",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
    }
    options = [option for name, place in places.items() for option in ("-o", f"{name}={place}")]
    return [*options, "-o", "Acquire::Retries=3"]


def python_source(package: str, version: str) -> Path:
    """Return the folder of a Python package's source distribution.

    Raises:
        MissingError: it can't be had.
    """
    folder = BUILD / f"{package.replace('-', '_')}-{version}"
    if folder.is_dir():
        return folder
    BUILD.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", package]
    _run([*pip, f"{package}=={version}"], BUILD)
    with tarfile.open(BUILD / f"{folder.name}.tar.gz") as archive:
        archive.extractall(BUILD, filter="data")
    return folder


def checkout(package: str, version: str, repository: str, tag: str) -> Path:
    """Return the folder of a project whose package has no tests: its user puts it there.

    Raises:
        MissingError: it is not there.
    """
    folder = BUILD / f"{package}-{version}"
    if not (folder / "tests").is_dir():
        what = f"--branch {tag} https://github.com/{repository} {folder.relative_to(ROOT)}"
        raise MissingError(f"its package has no tests: git clone {what}")
    return folder


def environment_with(package: str, version: str, *more: str) -> Path:
    """Return the Python of an environment that has a package and more, and not this project's.

    Raises:
        MissingError: the package can't be installed.
    """
    folder = BUILD / f"python-{package}-{version}"
    python = folder / "bin" / "python"
    ready, needed = folder / "ready", " ".join(more)
    if not ready.exists() or ready.read_text(encoding="utf-8") != needed:
        BUILD.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)], BUILD)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        _run([*pip, f"{package}=={version}", *more], BUILD)
        ready.write_text(needed, encoding="utf-8")
    return python


def go_source(module: str, version: str, replaced: Mapping[str, str]) -> Path:
    """Return a folder with a Go module's sources.

    Args:
        module: in Go's module proxy.
        version: of the module.
        replaced: words in the files of its first folder, and what stands there instead.

    Raises:
        MissingError: there is no Go, or the module can't be had.
    """
    _need_go()
    folder = BUILD / f"{_name(module)}-{version}"
    if not (folder / "ready").exists():
        said = _go("mod", "download", "-json", f"{module}@v{version}")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(json.loads(said)["Dir"], folder)
        _run(["chmod", "-R", "u+w", str(folder)], BUILD)
        for path in folder.glob("*.go"):
            text = path.read_text(encoding="utf-8")
            for before, after in replaced.items():
                text = re.sub(rf"\b{before}\b", after, text)
            path.write_text(text, encoding="utf-8")
        (folder / "ready").touch()
    return folder


def go_program(module: str, version: str, package: str) -> Path:
    """Return a program that Go builds from a module's package.

    Raises:
        MissingError: there is no Go, or the program can't be built.
    """
    folder = BUILD / f"{_name(module)}-{version}"
    program = folder / package.rpartition("/")[2]
    if not program.exists():
        _need_go()
        _go("install", f"{module}/{package}@v{version}", GOBIN=str(folder))
    return program


def _name(module: str) -> str:
    return module.removesuffix("/v2").rpartition("/")[2]


def _need_go() -> None:
    if shutil.which("go") is None:
        raise MissingError("Go is needed: apt-get install golang-go")


def _go(*words: str, **variables: str) -> str:
    """Return what Go prints."""
    BUILD.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["go", *words],
        cwd=BUILD,
        env={**os.environ, **variables},
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise MissingError(f"go {' '.join(words)}\n{said}")
    return done.stdout


def build_librdkafka(source: Path) -> Path:
    """Build the library and its tests, without optimization, and return the folder of the tests.

    Raises:
        MissingError: it can't be built.
    """
    tests = source / "tests"
    if not (tests / "test-runner").is_file():
        jobs = f"-j{os.cpu_count() or 1}"
        _run(["./configure", "--disable-optimization", "--disable-gssapi"], source)
        _run(["make", jobs, "libs"], source)
        _run(["make", jobs, "-C", "tests", "test-runner"], source)
    return tests


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        said = "\n".join(done.stdout.splitlines()[-10:])
        raise MissingError(f"{' '.join(command)}\n{said}\nto build: apt-get install {_TO_BUILD}")
