"""A sweep's answers and surfaces as sections of the report, from the folder that it wrote."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.analysis.errors import PipelineError
from purgatory.sweeps.sweep_page import sweep_sections

SURFACES = "surfaces"
ANSWERS = "answers.json"


def swept_sections(folder: Path) -> str:
    """The sections of a sweep, under a heading with the folder's name.

    Args:
        folder: the `--out` of a sweep.

    Raises:
        PipelineError: it is no such folder, or its files can't be read.
    """
    try:
        surfaces = pq.read_table(folder / SURFACES).to_pylist()
        answers = json.loads((folder / ANSWERS).read_text(encoding="utf-8"))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise PipelineError(
            f"--sweep {folder}: holds no results of a sweep ({SURFACES} and {ANSWERS}); make them "
            f"with purgatory sweep SWEEP.toml --out {folder}"
        ) from error
    surfaces.sort(key=lambda row: (row["surface"], row["y_level"] or 0, row["x_level"]))
    name = escape(folder.resolve().name)
    return f"<h2>Sweep {name}</h2>{sweep_sections(surfaces, answers)}"
