"""The report: one page of HTML that holds all it needs, its plotting library included.

The page may not load anything, and says so itself by a content security policy, which browsers
keep to. Whatever a plot shows, a table beside it says in figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from importlib import resources

import plotly.io
import plotly.offline

from purgatory.pipeline.plots import Figure, outcome_shares, sizes, wait_percentiles, waited
from purgatory.pipeline.rows import Row, grouped, milliseconds, shown_waits

MOST_PLOTTED_RUNS = 12
"""How many runs get plots; more would make a page that no browser opens with ease."""

_STYLE = resources.files("purgatory.pipeline").joinpath("report.css").read_text(encoding="utf-8")
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
# Plots are drawn for the width of the screen, and would be cut off on paper: A4 has 190 mm, which
# is 718 pixels, between margins of 10 mm.
_FIT_PAPER = """
const fit = size => document.querySelectorAll(".js-plotly-plot").forEach(
  plot => Plotly.relayout(plot, size));
addEventListener("beforeprint", () => fit({autosize: false, width: 700}));
addEventListener("afterprint", () => fit({autosize: true, width: null}));
"""
_PLOT_SETTINGS = {"displayModeBar": False, "responsive": True}

Column = tuple[str, bool, Callable[[Row], str]]
"""A column of a table: its heading, whether it holds numbers, and the text of a row's cell."""


def report_page(runs: Sequence[Row], waits: Sequence[Row], occupancy: Sequence[Row]) -> str:
    """The whole page, as text.

    Args:
        runs, waits, occupancy: rows of the result tables in their order; of `occupancy`, those of
            the first `MOST_PLOTTED_RUNS` runs are enough.
    """
    waits_of = grouped(waits, "run_id")
    occupancy_of = grouped(occupancy, "run_id")
    title = runs[0]["run_id"] if len(runs) == 1 else _count(len(runs), "run")
    parts = [_heading(title, runs, waits), _incomplete(runs)]
    if len(runs) != 1:
        parts.append(_runs_table(runs))
    for number, run in enumerate(runs):
        run_id = run["run_id"]
        if len(runs) != 1:
            parts.append(f'<h2 id="run-{number}">{escape(run_id)}</h2>')
        parts.append(
            _run(
                number,
                run,
                shown_waits(waits_of.get(run_id, [])),
                occupancy_of.get(run_id, []),
                plotted=number < MOST_PLOTTED_RUNS,
            )
        )
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Waits in {escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f"<script>{plotly.offline.get_plotlyjs()}</script>",
            f"<script>{_FIT_PAPER}</script>",
            "</head>",
            "<body>",
            "<main>",
            *parts,
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _heading(title: str, runs: Sequence[Row], waits: Sequence[Row]) -> str:
    counted = [row for row in waits if row["kind"] == "all"]
    operations = _operations(counted, "all")
    waited_count = operations - _operations(counted, "immediate")
    share = f" ({100 * waited_count / operations:.1f} %)" if operations else ""
    return (
        f"<header><h1>Waits in {escape(title)}</h1>"
        f"<p>{_count(len(runs), 'run')}, {_count(operations, 'operation')}, of which "
        f"{waited_count:,}{share} had to wait. All times are those of the runs' own clocks."
        "</p></header>"
    )


def _operations(waits: Sequence[Row], outcome: str) -> int:
    return sum(row["operations"] for row in waits if row["outcome"] == outcome)


def _incomplete(runs: Sequence[Row]) -> str:
    names = [escape(run["run_id"]) for run in runs if not run["complete"]]
    if not names:
        return ""
    return (
        '<section class="warning" role="note"><h3>Incomplete traces</h3>'
        f"<p>These runs were interrupted: {', '.join(names)}. What their traces have is counted "
        "here; operations that were waiting when the run broke off are in no table, so waits and "
        "sizes near the end are too small.</p></section>"
    )


def _runs_table(runs: Sequence[Row]) -> str:
    columns: list[Column] = [
        ("run", False, lambda row: row["run_id"]),
        ("scenario", False, lambda row: row["scenario"]),
        ("seed", True, lambda row: str(row["seed"])),
        ("trace", False, lambda row: "complete" if row["complete"] else "incomplete"),
        ("duration, s", True, lambda row: f"{row['duration_us'] / 1e6:,.3f}"),
        ("operations", True, lambda row: f"{row['operations']:,}"),
        ("sends", True, lambda row: f"{row['sends']:,}"),
        ("reads", True, lambda row: f"{row['reads']:,}"),
    ]
    return f"<section><h3>Runs</h3>{_table('The traces that were read.', columns, runs)}</section>"


def _run(
    number: int, run: Row, waits: Sequence[Row], occupancy: Sequence[Row], *, plotted: bool
) -> str:
    parts = [_about(run)]
    if not waits:
        parts.append('<section><p class="note">This run has no operations.</p></section>')
        return "\n".join(parts)
    parts += [_facts(waits, occupancy), _faults(run["faults"])]
    name = escape(run["run_id"])
    percentiles = ""
    if plotted:
        shares = _figure(f"shares-{number}", outcome_shares(waits), f"Shares of outcomes in {name}")
        parts.append(f"<section><h3>What became of the operations</h3>{shares}</section>")
        if waited(waits):
            percentiles = _figure(
                f"waits-{number}",
                wait_percentiles(waits),
                f"Percentiles of the waits in {name}",
                "From the median to the longest wait, by powers of ten. What was completed at once "
                "did not wait and is left out; what was pending at the end waited so long at "
                "least.",
            )
    else:
        parts.append(
            f'<p class="note">Plots are drawn for the first {MOST_PLOTTED_RUNS} runs; the table '
            "occupancy has this one too.</p>"
        )
    table = _waits_table(waits)
    parts.append(f"<section><h3>How long they waited</h3>{percentiles}{table}</section>")
    if plotted and occupancy:
        parts.append(_sizes(number, run, occupancy))
    return "\n".join(part for part in parts if part)


def _about(run: Row) -> str:
    complete = run["complete"]
    mark = (
        '<span class="mark">complete</span>'
        if complete
        else '<span class="mark broken">incomplete</span>'
    )
    return (
        f"<p>Scenario <strong>{escape(run['scenario'])}</strong>, seed {run['seed']}, "
        f"{run['duration_us'] / 1e6:,.3f} s. {mark}</p>"
    )


def _facts(waits: Sequence[Row], occupancy: Sequence[Row]) -> str:
    """What matters most of one run, in figures that are seen at once."""
    overall = [row for row in waits if row["kind"] == "all"]
    operations = _operations(overall, "all")
    facts = [("operations", f"{operations:,}", "")]
    for label, count in (
        ("had to wait", operations - _operations(overall, "immediate")),
        ("expired", _operations(overall, "expired")),
    ):
        facts.append((label, f"{count:,}", f" {100 * count / operations:.1f} %"))
    settled = [row for row in overall if row["outcome"] == "all"]
    longest = max((row["wait_max_us"] or 0 for row in settled), default=0)
    facts.append(("longest wait", f"{longest / 1000:,.1f}", " ms"))
    highest = [row["size_max"] for row in occupancy if row["broker"] is None]
    if highest:
        facts.append(("most that waited at once", f"{max(highest):,}", ""))
    return (
        '<dl class="facts">'
        + "".join(
            f"<div><dt>{label}</dt><dd>{figure}<small>{unit}</small></dd></div>"
            for label, figure, unit in facts
        )
        + "</dl>"
    )


def _faults(faults: Sequence[Row]) -> str:
    if not faults:
        return ""
    items = []
    for fault in faults:
        of_broker = "" if fault["broker"] is None else f" of broker {fault['broker']}"
        text = f"{fault['kind']}{of_broker} from {fault['at_ms'] / 1000:,.3f} s"
        if fault["duration_ms"] is not None:
            text += f" to {(fault['at_ms'] + fault['duration_ms']) / 1000:,.3f} s"
        items.append(f"<li>{escape(text)}</li>")
    return f"<section><h3>What was made to go wrong</h3><ul>{''.join(items)}</ul></section>"


def _sizes(number: int, run: Row, occupancy: Sequence[Row]) -> str:
    marked = " Bands mark the faults." if run["faults"] else ""
    figure = _figure(
        f"sizes-{number}",
        sizes(occupancy, run["faults"]),
        f"Size of each purgatory over time in {escape(run['run_id'])}",
        f"In buckets of {run['bucket_width_us'] / 1000:,g} ms: the highest number in the bucket, "
        f"and the mean over its time.{marked} A click on a broker in the legend draws it too.",
    )
    return f"<section><h3>How many waited</h3>{figure}{_sizes_table(occupancy)}</section>"


def _waits_table(waits: Sequence[Row]) -> str:
    columns: list[Column] = [
        ("purgatory", False, lambda row: row["label"]),
        ("outcome", False, lambda row: row["outcome"]),
        ("operations", True, lambda row: f"{row['operations']:,}"),
        ("share, %", True, lambda row: f"{100 * row['share']:.2f}"),
        ("mean, ms", True, lambda row: milliseconds(row["wait_mean_us"])),
        ("p50, ms", True, lambda row: milliseconds(row["wait_p50_us"])),
        ("p95, ms", True, lambda row: milliseconds(row["wait_p95_us"])),
        ("p99, ms", True, lambda row: milliseconds(row["wait_p99_us"])),
        ("max, ms", True, lambda row: milliseconds(row["wait_max_us"])),
    ]
    caption = (
        "Waits by purgatory, who asked where several kinds did, and outcome. Percentiles are "
        "exact; those of all outcomes are over settled operations, without the pending ones."
    )
    return _table(caption, columns, waits, is_total=lambda row: row["outcome"] == "all")


def _sizes_table(occupancy: Sequence[Row]) -> str:
    rows = []
    for purgatory, of_purgatory in grouped(occupancy, "purgatory").items():
        for broker, buckets in grouped(of_purgatory, "broker").items():
            peak = max(buckets, key=lambda row: row["size_max"])
            span_us = buckets[-1]["bucket_end_us"] - buckets[0]["bucket_start_us"]
            weighted = sum(
                row["size_mean"] * (row["bucket_end_us"] - row["bucket_start_us"])
                for row in buckets
            )
            rows.append(
                {
                    "purgatory": purgatory,
                    "broker": "all" if broker is None else str(broker),
                    "mean": weighted / span_us,
                    "peak": peak["size_max"],
                    "peak_s": peak["bucket_start_us"] / 1e6,
                }
            )
    columns: list[Column] = [
        ("purgatory", False, lambda row: row["purgatory"]),
        ("broker", False, lambda row: row["broker"]),
        ("mean size", True, lambda row: f"{row['mean']:,.2f}"),
        ("highest size", True, lambda row: f"{row['peak']:,}"),
        ("first in the bucket at, s", True, lambda row: f"{row['peak_s']:,.3f}"),
    ]
    caption = "How many operations waited at the same time."
    return _table(caption, columns, rows, is_total=lambda row: row["broker"] == "all")


def _table(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    is_total: Callable[[Row], bool] = lambda _: False,
) -> str:
    def cell(tag: str, text: str, is_number: bool) -> str:
        number = ' class="number"' if is_number else ""
        scope = ' scope="col"' if tag == "th" else ""
        return f"<{tag}{scope}{number}>{escape(text)}</{tag}>"

    head = "".join(cell("th", name, is_number) for name, is_number, _ in columns)
    body = "\n".join(
        ('<tr class="total">' if is_total(row) else "<tr>")
        + "".join(cell("td", text(row), is_number) for _, is_number, text in columns)
        + "</tr>"
        for row in rows
    )
    return (
        f'<p class="note">{escape(caption)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table aria-label="{escape(caption)}"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _figure(name: str, figure: Figure, label: str, caption: str = "") -> str:
    plot = plotly.io.to_html(
        figure,
        config=_PLOT_SETTINGS,
        include_plotlyjs=False,
        include_mathjax=False,
        full_html=False,
        div_id=name,
        validate=True,
    )
    figcaption = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure><div role="img" aria-label="{label}; the figures are in the table">{plot}</div>'
        f"{figcaption}</figure>"
    )


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
