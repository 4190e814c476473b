"""The first error names its cause: another project's ``purgatory`` or ``timer``, or an extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in ``folder``, whose packages come before the project's."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        timeout=60,
    )


@pytest.fixture
def foreign_timer(tmp_path: Path) -> Path:
    """A folder with another project's ``timer``."""
    (tmp_path / "timer").mkdir()
    (tmp_path / "timer" / "__init__.py").write_text("def timer(function): return function\n")
    return tmp_path


@pytest.fixture
def foreign_purgatory(tmp_path: Path) -> Path:
    """A folder as pip leaves it that installed another project's ``purgatory`` over ours."""
    (tmp_path / "purgatory").mkdir()
    for ours in (ROOT / "purgatory").iterdir():
        if ours.name not in {"__init__.py", "__pycache__"}:
            (tmp_path / "purgatory" / ours.name).symlink_to(ours)
    (tmp_path / "purgatory" / "__init__.py").write_text("class CircuitBreaker: pass\n")
    return tmp_path


def test_foreign_timer_is_named_with_the_remedy(foreign_timer: Path) -> None:
    ran = run(foreign_timer, "-c", "from purgatory import DelayedOperationPurgatory")
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("ImportError: the package 'timer' in ")
    assert str(foreign_timer / "timer") in last
    assert "is not that of kafka-purgatory" in last
    assert "pip uninstall timer" in last


@pytest.mark.parametrize(
    "start", [["-m", "purgatory"], ["-c", "import purgatory.cli as c; c.run()"]]
)
def test_another_projects_purgatory_is_named_by_the_command(
    foreign_purgatory: Path, start: list[str]
) -> None:
    ran = run(foreign_purgatory, *start, "wheel")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.startswith("purgatory: the package 'purgatory' in ")
    assert "pip uninstall purgatory" in ran.stderr


FIXTURE = "def test_cluster(kafka_cluster):\n    raise AssertionError('it started')\n"


def run_pytest(folder: Path, before: str = "") -> str:
    """Run a test that uses the fixture, after ``before``, and return what pytest printed."""
    (folder / "test_mine.py").write_text(FIXTURE)
    plugin = "import importlib.metadata as m, purgatory.pytest_plugin as p\n"
    program = (
        f"import sys\n{before}\nimport pytest\n{plugin}"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'test_mine.py']))"
    )
    return run(folder, "-c", program).stdout


def test_fixture_without_its_extra_names_what_to_install(tmp_path: Path) -> None:
    printed = run_pytest(tmp_path, "sys.modules['kio'] = None")
    assert (
        "the fixture kafka_cluster needs the cluster extra (kio is missing): "
        "pip install 'kafka-purgatory[cluster]'"
    ) in " ".join(printed.split())
    assert "Traceback" not in printed
    assert "ModuleNotFoundError" not in printed


def test_fixture_names_another_projects_purgatory(foreign_purgatory: Path) -> None:
    printed = run_pytest(foreign_purgatory)
    assert "is not that of kafka-purgatory" in " ".join(printed.split())


@pytest.mark.parametrize(
    ("module", "to"),
    [("confluent_kafka", "sqlite:///copy.db"), ("psycopg", "postgresql://me@127.0.0.1/copy")],
)
def test_apply_names_a_missing_package_before_spark_starts(
    tmp_path: Path, module: str, to: str
) -> None:
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "import purgatory.pipeline.engines.spark.session as session\n"
        "session.spark_session = lambda *_, **__: sys.exit('Spark was started')\n"
        "sys.argv = ['purgatory', 'apply', '--bootstrap=127.0.0.1:1', '--topic=changes',"
        f" {'--to=' + to!r}]\n"
        "import purgatory.cli; purgatory.cli.run()\n"
    )
    ran = run(tmp_path, "-c", program)
    assert (ran.returncode, ran.stdout) == (2, "")
    # librdkafka may have logged before that no broker responds.
    assert ran.stderr.splitlines()[-1] == (
        f"purgatory apply needs the live extra ({module} is missing): "
        "pip install 'kafka-purgatory[live]'"
    )
