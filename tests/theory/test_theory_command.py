"""``purgatory theory``, and what its document shows of it."""

from __future__ import annotations

import csv
import re
import signal
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer

from purgatory.cli.main import app_of
from purgatory.simulation.network import Connection
from purgatory.theory.experiments import EXPERIMENTS, SERVICE_MS, Experiment
from purgatory.theory.laws import exponential_queue_ms
from purgatory.theory.theory_files import COLUMNS
from tests.cli.conftest import RunCommand

DOCUMENT = Path(__file__).parents[2] / "docs" / "theory.md"
BY_NAME = {one.name: one for one in EXPERIMENTS}
SHORT = ("theory", "--seeds", "3", "--duration", "5s")


def table_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "theory.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def points_of(drawing: Path) -> int:
    return len(ElementTree.parse(drawing).findall(".//{http://www.w3.org/2000/svg}circle"))


def use_only(monkeypatch: pytest.MonkeyPatch, *experiments: Experiment) -> None:
    """Have the command compare nothing else."""
    for module in ("experiments", "comparison", "theory_plot"):
        monkeypatch.setattr(f"purgatory.theory.{module}.EXPERIMENTS", experiments)


@pytest.fixture
def one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    use_only(monkeypatch, replace(BY_NAME["slower-of-two"], values=(4.5, 5.0)))


@pytest.mark.slow
@pytest.mark.parametrize("at", ["ends", pytest.param("all", marks=pytest.mark.exhaustive)])
def test_all_laws_are_compared_and_written(
    run_command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    experiments: tuple[Experiment, ...] = EXPERIMENTS
    if at == "ends":
        experiments = tuple(
            replace(one, values=tuple(sorted({one.values[0], one.values[-1]})))
            for one in EXPERIMENTS
        )
        use_only(monkeypatch, *experiments)
    ran = run_command("theory", "--quick", "--out", str(tmp_path / "out"))
    assert ran.status == 0, ran.out
    rows = table_of(tmp_path / "out")
    assert [(row["experiment"], float(row["value"])) for row in rows] == [
        (one.name, value) for one in experiments for value in one.values
    ]
    for row in rows:
        low, theory, high = (float(row[name]) for name in ("low", "theory", "high"))
        assert row["covers"] == str(low <= theory <= high).lower()
        assert (row["seeds"], int(row["sends"]) > 200) == ("3", True)
    covered = sum(row["covers"] == "true" for row in rows)
    assert f"{covered} of {len(rows)} intervals of 95 % confidence cover" in ran.out
    assert "No difference is more than chance explains." in ran.out
    drawn = sum(len(one.values) for one in experiments if one.panel)
    assert points_of(tmp_path / "out" / "theory.svg") == drawn


@pytest.mark.usefixtures("one_alone")
def test_the_same_command_says_the_same(run_command: RunCommand, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    first = run_command(*SHORT, "--out", str(out))
    assert first.status == 0 and first.out.endswith("chance explains.\n")
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert files.keys() == {"theory.csv", "theory.svg"}
    assert files["theory.csv"].decode().splitlines()[0] == ",".join(COLUMNS)
    again = run_command(*SHORT, "--out", str(out), "--overwrite")
    assert again == first
    assert {path.name: path.read_bytes() for path in out.iterdir()} == files


def test_a_wrong_law_ends_with_status_1(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(
        BY_NAME["constant-queue"],
        values=(0.5,),
        law=lambda utilisation: exponential_queue_ms(utilisation / SERVICE_MS, SERVICE_MS),
    )
    use_only(monkeypatch, wrong)
    ran = run_command("theory", "--seeds", "5", "--duration", "5s")
    assert ran.status == 1
    assert "0 of 1 intervals" in ran.out
    assert "constant-queue at 0.5 differs by more than chance explains: " in ran.out


@pytest.mark.usefixtures("one_alone")
def test_what_is_there_is_kept(run_command: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    for more in ((), ("--overwrite",)):
        ran = run_command(*SHORT, "--out", str(tmp_path / "mine"), *more)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.endswith("mine holds something else, and is left as it is\n")
    (tmp_path / "mine" / "theory.csv").write_text("old")
    ran = run_command(*SHORT, "--out", str(tmp_path / "mine"))
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.endswith("holds results; --overwrite replaces them\n")
    for place in ("letter.txt", "letter.txt/below"):
        ran = run_command(*SHORT, "--out", str(tmp_path / "mine" / place))
        assert (ran.status, ran.out) == (2, "") and place in ran.err
    assert (tmp_path / "mine" / "theory.csv").read_text() == "old"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seeds", "1"), "'1' is not a whole number from 2 to 1000"),
        (("--duration", "4s"), "'4s' is too short; it must be at least 5s"),
        (("--duration", "5"), "'5' is no duration"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    run_command: RunCommand, arguments: tuple[str, str], message: str
) -> None:
    ran = run_command("theory", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err and ran.err.count("\n") == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("when", ["while one runs", "between two"])
@pytest.mark.usefixtures("interruptible")
def test_a_signal_leaves_no_files(
    run_command: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    number: signal.Signals,
    status: int,
    when: str,
) -> None:
    one = replace(BY_NAME["slower-of-two"], values=(4.5,))
    if when == "between two":

        def signalled(_: float) -> float:
            signal.raise_signal(number)
            return 1.0

        one = replace(one, law=signalled)
    else:
        answer = Connection.answer

        def signalled_once(self: Connection, *args: object) -> None:
            monkeypatch.setattr(Connection, "answer", answer)
            signal.raise_signal(number)
            answer(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(Connection, "answer", signalled_once)
    use_only(monkeypatch, one)
    before = signal.getsignal(number)
    ran = run_command(*SHORT, "--out", str(tmp_path / "out"))
    assert ran.status == status
    assert ran.err == "purgatory theory: interrupted; nothing was written\n"
    assert not any((tmp_path / "out").iterdir())
    assert signal.getsignal(number) is before


def shown() -> list[list[str]]:
    """The rows of the document's table of figures."""
    row = re.compile(r"^\| `([a-z-]+)` \| (.+) \|$", re.MULTILINE)
    found = [[name, *rest.split(" | ")] for name, rest in row.findall(DOCUMENT.read_text())]
    return [cells for cells in found if cells[0] in BY_NAME]


def test_the_document_shows_each_comparison_with_the_law_as_it_is() -> None:
    assert [(name, float(value)) for name, value, *_ in shown()] == [
        (one.name, value) for one in EXPERIMENTS for value in one.values
    ]
    for name, value, theory, simulated, half, covered in shown():
        law = BY_NAME[name].law
        assert law is None or f"{law(float(value)):.4f}" == theory
        inside = abs(float(simulated) - float(theory)) <= float(half) + 1e-4
        assert covered == ("yes" if inside else "no")


def test_the_document_shows_the_plot_of_its_table() -> None:
    drawing = DOCUMENT.with_suffix(".svg")
    assert f"({drawing.name})" in DOCUMENT.read_text()
    assert points_of(drawing) == sum(len(one.values) for one in EXPERIMENTS if one.panel)
    assert drawing.stat().st_size < 30_000


def test_the_document_has_each_option() -> None:
    command = typer.main.get_command(app_of("theory"))
    assert isinstance(command, typer.core.TyperGroup)
    options = {
        name
        for parameter in command.commands["theory"].params
        for name in parameter.opts
        if name.startswith("--")
    }
    described = set(re.findall(r"^\| `(--[a-z]+)", DOCUMENT.read_text(), re.MULTILINE))
    assert described == options
