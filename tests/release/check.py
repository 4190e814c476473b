"""Whether a release can be made of this tree: `make release-check`.

A wheel and a source distribution are built from a tree that can't be written, and looked at by
twine. The source distribution is compared with what is under version control, and the timer's tests
run in it. Then, for each Python from 3.11 on that this machine has, what its wheel has and lacks is
looked at, and for each extra by itself a fresh environment is made from that wheel, in which
`extras_alone` says what has to work, and the README's Python runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.release.extras_alone import ALL, Alone
from tests.unit.documents.documents import README, ROOT, python_of

_VERSIONS = ("3.11", "3.12", "3.13", "3.14")
_QUICK_S = 10
"""A missing extra is reported before anything slow: within this time, with Python's start."""

_faults: list[str] = []


def main() -> int:
    """Check, print the problems, and return 1 if there are any."""
    parser = argparse.ArgumentParser(description="Whether a release can be made of this tree.")
    parser.add_argument("--python", action="append", help="only these; default: all from 3.11 on")
    parser.add_argument("--extra", action="append", help="only these; '' is no extra")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="purgatory-release-") as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        _tell("building, from a tree that can't be written")
        source = _build(folder)
        _compare_with_version_control(source)
        _test_unpacked(source, folder)
        trace = _trace(folder, source)
        for python in asked.python or list(_pythons()):
            wheel = _wheel(python, source, folder)
            _faults.extend(f"{wheel.name}: {fault}" for fault in faults_of_wheel(wheel))
            for alone in ALL:
                if asked.extra is None or alone.extra in asked.extra:
                    _try_alone(python, alone, wheel, trace, folder / "environment")
    for fault in _faults:
        print(f"WRONG: {fault}")
    print(f"{len(_faults)} things are wrong" if _faults else "A release can be made.")
    return 1 if _faults else 0


def _tell(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


def _pythons() -> Iterator[str]:
    """Yield one Python of each version that is here."""
    for version in _VERSIONS:
        places = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
        for python in (f"python{version}", *map(str, places)):
            found = shutil.which(python)
            if found is not None and _run([found, "-c", "import ensurepip"]).returncode == 0:
                yield found
                break
        else:
            _tell(f"Python {version}: not found on this machine")


def _run(
    command: Sequence[str | Path], folder: Path | None = None, timeout_s: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run a command outside of this tree, so that what it imports is what was installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder or tempfile.gettempdir(),
        env={**environment, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "NO_COLOR": "1"},
        timeout=timeout_s,
    )


def _must(ran: subprocess.CompletedProcess[str], what: str) -> None:
    if ran.returncode != 0:
        raise SystemExit(f"release-check: {what} failed:\n{ran.stdout}{ran.stderr}")


def _build(folder: Path) -> Path:
    """Build both distributions into ``dist/`` of the folder, and return the source's."""
    tree, dist = folder / "tree", folder / "dist"
    shutil.copytree(
        ROOT,
        tree,
        ignore=shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", ".*_cache"),
    )
    dist.mkdir()
    _must(_run(["chmod", "-R", "a-w,a+rX", tree]), "to make the tree read-only")
    before = _written(tree)
    _must(_run([sys.executable, "-m", "build", "--outdir", dist, tree]), "to build")
    if _written(tree) != before:  # root can, whatever the permissions are
        _faults.append("the build wrote into the tree")
    made = [path for path in dist.iterdir() if path.is_file()]
    _must(_run([sys.executable, "-m", "twine", "check", "--strict", *made]), "twine check")
    for path in made:
        _tell(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    (source,) = dist.glob("*.tar.gz")
    return source


def _written(tree: Path) -> dict[Path, int]:
    """Return when each file of a tree was last written to; Python's own caches do not count."""
    return {
        path: path.stat().st_mtime_ns
        for path in tree.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }


def _compare_with_version_control(source: Path) -> None:
    listed = _run(["git", "ls-files"], ROOT)
    if listed.returncode != 0:
        _tell("this is no clone: what the source distribution lacks is not looked for")
        return
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    _faults.extend(
        f"the source distribution lacks {path}"
        for path in listed.stdout.splitlines()
        if path not in names
    )


def _test_unpacked(source: Path, folder: Path) -> None:
    """Run the timer's tests where the source distribution was unpacked, as a packager does."""
    with tarfile.open(source) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [tree] = (folder / "unpacked").iterdir()
    place = folder / "environment"
    shutil.rmtree(place, ignore_errors=True)
    _must(_run([sys.executable, "-m", "venv", place]), "venv")
    python = place / "bin/python"
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet"]
    pins: list[str | Path] = ["--constraint", ROOT / "constraints.txt"]
    _must(_run([*pip, *pins, "--editable", f"{tree}[core-tests]"]), "pip install, unpacked")
    marks = "not exhaustive and not once"
    pytest: list[str | Path] = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    tested = _run([*pytest, "-m", marks, "tests/unit/timer"], tree, timeout_s=1_200)
    if tested.returncode != 0:
        _faults.append(f"the tests of the unpacked source distribution: {tested.stdout[-2_000:]}")
    _tell(f"tests from the unpacked source distribution: {(tested.stdout or '?').splitlines()[-1]}")


def faults_of_wheel(wheel: Path) -> Iterator[str]:
    """Yield the superfluous and the missing files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packages = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    if packages != {"purgatory", "timer"}:
        yield f"it has {', '.join(sorted(packages))}"
    yield from (f"it has {name}" for name in names if name.endswith((".c", ".pyc")))
    yield from (
        f"it lacks {name}" for name in ("purgatory/py.typed", "timer/py.typed") if name not in names
    )
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for module in settings["tool"]["setuptools"]["ext-modules"]:
        start = module["name"].replace(".", "/") + "."
        if not any(name.startswith(start) and name.endswith((".so", ".pyd")) for name in names):
            yield f"it lacks {module['name']}, built natively (is there a C compiler?)"


def _trace(folder: Path, source: Path) -> Path:
    """Make a trace for the extras that read one."""
    python = _environment(sys.executable, "simulation", source, folder / "environment")
    trace = folder / "trace"
    _must(
        _run(
            [
                python,
                "-m",
                "purgatory",
                "simulate",
                "steady",
                "--duration",
                "500ms",
                "--trace",
                trace,
            ]
        ),
        "simulate",
    )
    return trace


def _wheel(python: str, source: Path, folder: Path) -> Path:
    """Make a wheel for a Python of the source distribution, as pip does: once for all extras."""
    place = Path(tempfile.mkdtemp(prefix="wheel-", dir=folder))
    maker = folder / "environment"
    shutil.rmtree(maker, ignore_errors=True)
    _must(_run([python, "-m", "venv", maker]), f"{python} -m venv")
    pip: list[str | Path] = [maker / "bin/python", "-m", "pip", "wheel", "--quiet", "--no-deps"]
    _must(_run([*pip, "--wheel-dir", place, source]), f"pip wheel {source}")
    [wheel] = place.glob("*.whl")
    return wheel


def _environment(python: str, extra: str, package: Path, place: Path) -> Path:
    """Make a fresh environment with one extra, and return its Python."""
    shutil.rmtree(place, ignore_errors=True)
    _must(_run([python, "-m", "venv", place]), f"{python} -m venv")
    inside = place / "bin/python"
    wanted = f"kafka-purgatory[{extra}] @ {package.as_uri()}" if extra else str(package)
    pins = ROOT / "constraints.txt"
    pip: list[str | Path] = [
        inside,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        pins,
        wanted,
    ]
    _must(_run(pip), f"pip install {wanted}")
    return inside


def _try_alone(python: str, alone: Alone, wheel: Path, trace: Path, place: Path) -> None:
    began_s = time.monotonic()
    inside = _environment(python, alone.extra, wheel, place)
    version = _run([inside, "--version"]).stdout.strip()
    where = f"{version}, [{alone.extra}]"
    installed_s = time.monotonic() - began_s
    before = len(_faults)
    readme = _run([inside, "-W", "error", "-c", python_of(README)])
    if readme.returncode != 0:
        _faults.append(f"{where}: the README's Python: {readme.stderr.strip()}")
    for words in alone.works:
        ran = _purgatory(inside, words, trace, place)
        if ran.returncode != 0:
            _faults.append(f"{where}: {_said(words, ran)}")
    for words, extra in alone.wants:
        begun_s = time.monotonic()
        ran = _purgatory(inside, words, trace, place)
        took_s = time.monotonic() - begun_s
        one_line = len(ran.stderr.strip().splitlines()) == 1 and extra in ran.stderr
        if ran.returncode != 2 or not one_line or took_s > _QUICK_S:
            _faults.append(
                f"{where}: wanted one line with {extra}: {took_s:.0f} s, {_said(words, ran)}"
            )
    for words in alone.starts:
        _start_and_stop(inside, [str(trace) if word == "TRACE" else word for word in words], where)
    size_mb = sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) / 1e6
    said = "good" if len(_faults) == before else "WRONG"
    _tell(f"{where}: {size_mb:,.0f} MB, installed in {installed_s:.0f} s: {said}")


def _purgatory(
    inside: Path, words: Sequence[str], trace: Path, place: Path
) -> subprocess.CompletedProcess[str]:
    """Run ``purgatory`` of an environment with these words."""
    out = place / "out"
    shutil.rmtree(out, ignore_errors=True)
    places = {"TRACE": str(trace), "OUT": str(out)}
    return _run([inside.parent / "purgatory", *(places.get(word, word) for word in words)])


def _said(words: Sequence[str], ran: subprocess.CompletedProcess[str]) -> str:
    end = (ran.stdout + ran.stderr).strip()[-500:]
    return f"purgatory {' '.join(words)} ended with {ran.returncode}: {end}"


def _start_and_stop(inside: Path, words: Sequence[str], where: str) -> None:
    """Start a server, wait for its address, and end it as Ctrl-C does."""
    with subprocess.Popen(
        [inside.parent / "purgatory", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tempfile.gettempdir(),
    ) as server:
        assert server.stdout is not None
        said = ""
        for line in server.stdout:
            said += line
            if "http://" in line:
                break
        server.send_signal(signal.SIGINT)
        said += server.communicate(timeout=60)[0]
    if "http://" not in said or "Traceback" in said:
        _faults.append(f"{where}: purgatory {' '.join(words)} said: {said}")


if __name__ == "__main__":
    raise SystemExit(main())
