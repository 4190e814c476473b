"""The page of a sweep: its answers in sentences, heat maps, and what failed.

`sweep_page` returns a page of its own, which needs no network; `SweepResults.sections` returns the
sections alone, for a page that has plotly and the report's style already. A table beside each plot
has its figures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.report.findings import findings_list
from purgatory.pipeline.report.page import (
    Column,
    PagePart,
    figure,
    page,
    row_links,
    section,
    table,
)
from purgatory.pipeline.report.plots import GRID, Figure, axis_title, blank_layout, edge_label
from purgatory.pipeline.report.sentences import Finding, Severity
from purgatory.pipeline.result_rows import Row, group_by, text
from purgatory.sweeps.basis import SweepBasis

HEAD = "sweep.json"
HEATMAPS = "heatmaps"
ANSWERS = "answers.json"
"""The parts of a sweep's folder that the page shows: a table and two files."""

# Cividis: its lightness grows evenly, so it reads the same in gray and with any color vision.
_COLORS = ("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838")
_MOST_CELL_TEXTS = 200
_MOST_ON_EVEN_SCALE = 50
_ROW_PX = 34
_PART = PagePart(0)


def sweep_page(
    head: Mapping[str, Any],
    heatmaps: Sequence[Row],
    answers: Sequence[Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]] = (),
    *,
    parquet: str | None = None,
) -> str:
    """A page of its own, as text.

    Args:
        head: `name`, `description`, `scenario`, the number of `points`, and the `basis`.
        heatmaps: rows of the table of that name.
        answers: each as `Answer.plain()` gives it.
        failures: some of the scenarios that failed: `settings`, `seed` and `error`.
        parquet: where the page finds the Parquet of the heat maps.
    """
    title = f"Sweep {head['name']}"
    basis: SweepBasis = head["basis"]
    header = f"<header><h1>{escape(title)}</h1>{_verdict(basis)}{_about(head)}</header>"
    sections = sweep_sections(heatmaps, answers, failures, failed=basis.failed, parquet=parquet)
    return page(title, [header, "<h2>Results</h2>", sections])


def sweep_sections(
    heatmaps: Sequence[Row],
    answers: Sequence[Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]] = (),
    *,
    failed: int = 0,
    parquet: str | None = None,
) -> str:
    """The sections of a sweep: answers, heat maps, failures. Needs plotly and the report's style.

    Args:
        heatmaps, answers, failures, parquet: as of `sweep_page`.
        failed: how many scenarios failed in all.
    """
    by_number = group_by(heatmaps, "heatmap")
    parts = [_heatmap(number, rows, parquet) for number, rows in by_number.items()]
    if failed:
        parts.append(_failures(failures, failed))
    below = "\n".join(parts)
    findings = [_answer(answer, by_number) for answer in answers]
    if failed:
        findings.insert(0, Finding(_failed(failed), Severity.INCOMPLETE, "failures"))
    return f"{section('Answers', findings_list(_PART, findings, below))}\n{below}"


def heatmap_plot(rows: Sequence[Row]) -> Figure:
    """The plot of one heat map; a line with its spread if it has one setting only.

    Args:
        rows: those of the heat map in the table `heatmaps`.
    """
    return _line(rows) if rows[0]["y_setting"] is None else _heat_map(rows)


def _heat_map(rows: Sequence[Row]) -> Figure:
    xs, ys = _labels(rows, "x"), _labels(rows, "y")
    mean = {(row["x_level"], row["y_level"]): row for row in rows}
    cells = [[mean.get((x, y)) for x in xs] for y in ys]
    log = _by_powers_of_ten([row["mean"] for row in rows if row["mean"] is not None])
    data: Figure = {
        "type": "heatmap",
        "x": list(xs.values()),
        "y": list(ys.values()),
        "z": [[_color(cell, log) for cell in line] for line in cells],
        "customdata": [[_spread(cell) for cell in line] for line in cells],
        "hovertemplate": "%{x}<br>%{y}<br>%{customdata}<extra></extra>",
        "colorscale": [
            [number / (len(_COLORS) - 1), color] for number, color in enumerate(_COLORS)
        ],
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"thickness": 12, "tickfont": {"size": 11}},
    }
    if log:
        powers = sorted({math.floor(z) for line in data["z"] for z in line if z is not None})
        ticks = range(powers[0], powers[-1] + 2)
        data["colorbar"] |= {
            "tickvals": list(ticks),
            "ticktext": [f"{10.0**power:g}" for power in ticks],
        }
    if len(xs) * len(ys) <= _MOST_CELL_TEXTS:
        data["text"] = [
            ["" if cell is None or cell["mean"] is None else text(cell["mean"]) for cell in line]
            for line in cells
        ]
        data["texttemplate"] = "%{text}"
    layout = _layout(rows[0], height=150 + _ROW_PX * max(3, len(ys)))
    layout["xaxis"] |= {"type": "category"}
    layout["yaxis"] |= {"type": "category"}
    layout["annotations"] = [_axis_label(rows[0]["y_setting"])]
    return {"data": [data], "layout": layout}


def _by_powers_of_ten(values: Sequence[float]) -> bool:
    """Whether values lie so far apart that on an even scale most would have one color."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > _MOST_ON_EVEN_SCALE


def _color(cell: Row | None, log: bool) -> float | None:
    """The place of a cell on the scale of colors."""
    if cell is None or cell["mean"] is None:
        return None
    return math.log10(cell["mean"]) if log else float(cell["mean"])


def _line(rows: Sequence[Row]) -> Figure:
    drawn = [row for row in rows if row["mean"] is not None]
    data: Figure = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [_plain(row["x"]) for row in drawn],
        "y": [row["mean"] for row in drawn],
        "error_y": {"type": "data", "array": [row["seed_sd"] or 0 for row in drawn]},
        "customdata": [_spread(row) for row in drawn],
        "hovertemplate": "%{x}: %{customdata}<extra></extra>",
        "line": {"color": "#0072b2"},
    }
    layout = _layout(rows[0], height=320)
    layout["xaxis"] |= {"type": "category"}
    layout["annotations"] = [_axis_label(rows[0]["measure"])]
    return {"data": [data], "layout": layout}


def _labels(rows: Sequence[Row], axis: str) -> dict[int, str]:
    """The texts of an axis by level, in order."""
    return {
        level: _plain(label)
        for level, label in sorted({(row[f"{axis}_level"], row[axis]) for row in rows})
    }


def _spread(row: Row | None) -> str:
    """A cell in words, which a pointer on it shows."""
    if row is None or row["mean"] is None:
        return "no value"
    words = text(row["mean"])
    if row["seed_sd"] is not None:
        words += f", ± {text(row['seed_sd'])} between seeds"
    if row["points"] > 1:
        words += f", {text(row['least'])} to {text(row['most'])} between points"
    return words


def _layout(row: Row, height: int) -> Figure:
    return blank_layout(height) | {
        "showlegend": False,
        "xaxis": {**GRID, "title": axis_title(_plain(row["x_setting"]))},
        "yaxis": {**GRID},
    }


def _axis_label(label: str) -> Figure:
    """The name of the vertical axis, over it: a narrow screen has its whole width for the plot."""
    return edge_label(label, yref="paper", y=1, yanchor="bottom", yshift=6)


def _plain(label: str) -> str:
    """A text in which plotly finds no markup."""
    return label.replace("&", "&amp;").replace("<", "&lt;")


def _verdict(basis: SweepBasis | None) -> str:
    """The first line: what the answers rest on."""
    text = _UNKNOWN_BASIS if basis is None else str(basis)
    text = f"{text[0].upper()}{text[1:]}."
    if basis is None or basis.nothing_judged:
        return f'<p class="verdict unjudged"><strong>Unjudged.</strong> {text}</p>'
    return f'<p class="verdict none">{text}</p>'


def _about(head: Mapping[str, Any]) -> str:
    description = f"<p>{escape(head['description'])}</p>" if head["description"] else ""
    facts = [
        ("points", f"{head['points']:,}"),
        ("scenarios", f"{head['basis'].scenarios:,}"),
        ("failed", f"{head['basis'].failed:,}"),
    ]
    shown = "".join(f"<div><dt>{name}</dt><dd>{figure}</dd></div>" for name, figure in facts)
    return (
        f"{description}<p>Simulations of <strong>{escape(head['scenario'])}</strong>; all figures "
        f'are of virtual time.</p><dl class="facts">{shown}</dl>'
    )


def _answer(answer: Mapping[str, Any], heatmaps: Mapping[int, Sequence[Row]]) -> Finding:
    """An answer, with the first heat map that shows its measure by the setting asked for."""
    question = answer["question"]
    shown = [
        number
        for number, (row, *_) in heatmaps.items()
        if row["measure"] == question["measure"]
        and question["find"] in (row["x_setting"], row["y_setting"])
    ]
    doubtful = Severity.DOUBT if answer["value"] is not None else Severity.NOTE
    severity = doubtful if answer["confirmed"] is None else Severity.FINE
    return Finding(answer["words"], severity, f"heatmap-{shown[0] if shown else None}")


def _heatmap(number: int, rows: Sequence[Row], parquet: str | None) -> str:
    head = rows[0]
    over = " and ".join(name for name in (head["x_setting"], head["y_setting"]) if name)
    title = f"{head['measure']} by {over}"
    caption = (
        "The mean over seeds, and over all settings that are not shown; the table has the spread."
    )
    plot = ""
    if any(row["mean"] is not None for row in rows):
        plot = figure(f"heatmap-{number}", heatmap_plot(rows), title, caption)
    name = f"heatmap-{number}"
    part = PagePart(0, parquet={} if parquet is None else {name: parquet})
    rows_of = row_links(part, name, rows)
    return section(title, plot, _heatmap_table(title, rows), rows_of, anchor=_PART.anchor(name))


def _heatmap_table(title: str, rows: Sequence[Row]) -> str:
    head = rows[0]
    columns: list[Column] = [
        (head[f"{axis}_setting"], False, itemgetter(axis))
        for axis in ("x", "y")
        if head[f"{axis}_setting"]
    ]
    columns += [
        ("mean", True, lambda row: _number(row["mean"])),
        ("sd between seeds", True, lambda row: _number(row["seed_sd"])),
        ("least", True, lambda row: _number(row["least"])),
        ("most", True, lambda row: _number(row["most"])),
        ("scenarios", True, lambda row: f"{row['scenarios']:,}"),
        ("failed", True, lambda row: f"{row['failed']:,}"),
    ]
    return table(f"{title}, with its spread.", columns, rows)


def _failures(failures: Sequence[Mapping[str, Any]], failed: int) -> str:
    more = "" if failed == len(failures) else f" These are {len(failures)} of them."
    columns: list[Column] = [
        ("settings", False, itemgetter("settings")),
        ("seed", False, lambda row: str(row["seed"])),
        ("error", False, itemgetter("error")),
    ]
    return (
        f'<section class="warning" role="note" id="{_PART.anchor("failures")}"><h3>Failed</h3>'
        f"<p>{_failed(failed)}{more}</p>{table('Scenarios that failed.', columns, failures)}"
        "</section>"
    )


def _failed(failed: int) -> str:
    scenarios = "1 scenario" if failed == 1 else f"{failed:,} scenarios"
    return f"{scenarios} failed and {'is' if failed == 1 else 'are'} in no mean."


def _number(value: float | None) -> str:
    return "-" if value is None else text(value)


@dataclass(frozen=True)
class SweepResults:
    """The results in a sweep's folder; `basis` is None where an earlier version left them."""

    name: str
    basis: SweepBasis | None
    heatmaps: Sequence[Row]
    answers: Sequence[Mapping[str, Any]]
    failures: Sequence[Mapping[str, Any]]

    def basis_line(self) -> str:
        """The basis of the answers."""
        return _UNKNOWN_BASIS if self.basis is None else str(self.basis)

    def sections(self) -> str:
        """The sections of the sweep, under a heading with the folder's name and their basis."""
        failed = 0 if self.basis is None else self.basis.failed
        sections = sweep_sections(self.heatmaps, self.answers, self.failures, failed=failed)
        return f"<h2>Sweep {escape(self.name)}</h2>{_verdict(self.basis)}{sections}"


_UNKNOWN_BASIS = (
    "what was judged is unknown: run purgatory sweep again with this --out, which runs only what "
    "is missing"
)


def read_results(folder: Path) -> SweepResults:
    """The results in the `--out` of a sweep.

    Raises:
        PipelineError: it is no such folder, or its files can't be read.
    """
    try:
        heatmaps = pq.read_table(folder / HEATMAPS).to_pylist()
        answers = json.loads((folder / ANSWERS).read_text(encoding="utf-8"))
        head = json.loads((folder / HEAD).read_text(encoding="utf-8"))
        basis = SweepBasis(**head["basis"]) if "basis" in head else None
    except (OSError, ValueError, TypeError, pa.ArrowException) as error:
        raise PipelineError(
            f"--sweep {folder}: holds no results of a sweep ({HEAD}, {HEATMAPS} and {ANSWERS}); "
            f"make them with purgatory sweep SWEEP.toml --out {folder}"
        ) from error
    heatmaps.sort(key=lambda row: (row["heatmap"], row["y_level"] or 0, row["x_level"]))
    return SweepResults(folder.resolve().name, basis, heatmaps, answers, head.get("failures", ()))
