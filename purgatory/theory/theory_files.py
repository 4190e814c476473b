"""The folder of a comparison: its table, its plot and the scenarios that were simulated."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from purgatory.theory.comparison import Comparison
from purgatory.theory.theory_plot import theory_svg

TABLE, PLOT = "theory.csv", "theory.svg"
COLUMNS = (
    "experiment",
    "value",
    "theory",
    "simulated",
    "low",
    "high",
    "covers",
    "standard_error",
    "seeds",
    "sends",
)


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Make the folder, or see that it is empty or holds earlier results that may be replaced.

    Raises:
        FileExistsError: it holds something else, or results without leave to replace them.
        OSError: it can't be made or looked into.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        return
    if not (folder / TABLE).is_file():
        raise FileExistsError(f"{folder} holds something else, and is left as it is")
    if not overwrite:
        raise FileExistsError(f"{folder} holds results; --overwrite replaces them")


def write_files(folder: Path, found: Mapping[str, Sequence[Comparison]]) -> None:
    """Write table and plot into a folder that is there, each whole.

    For a reader there is the old one or the new one.

    Raises:
        OSError: they can't be written.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for rows in found.values():
        table.writerows(_cells(row) for row in rows)
    for name, content in ((PLOT, theory_svg(found)), (TABLE, text.getvalue())):
        unfinished = folder / f".{name}.{os.getpid()}"
        unfinished.write_text(content, encoding="utf-8")
        unfinished.replace(folder / name)


def _cells(row: Comparison) -> list[object]:
    half = row.half_width()
    figures = (row.theory, row.simulated, row.simulated - half, row.simulated + half)
    return [
        row.experiment,
        f"{row.value:g}",
        *(f"{figure:.8g}" for figure in figures),
        str(row.covers()).lower(),
        f"{row.standard_error:.6g}",
        row.seeds,
        row.sends,
    ]
