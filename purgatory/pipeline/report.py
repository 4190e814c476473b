"""The report: one page of HTML that holds all it needs, its plotting library included.

The page may not load anything, and says so itself by a content security policy, which browsers
keep to. Whatever a plot shows, a table beside it says in figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

import plotly.io
import plotly.offline

from purgatory.pipeline.plots import Figure, outcome_shares, sizes, wait_percentiles, waited
from purgatory.pipeline.rows import Row, grouped, milliseconds, shown_waits

MOST_PLOTTED_RUNS = 12
"""How many runs get plots; more would make a page that no browser opens with ease."""

_STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: #f8fafc; color: #1f2937;
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.35rem; margin: 2.5rem 0 .5rem; overflow-wrap: anywhere; }
h3 { font-size: 1.05rem; margin: 0 0 .5rem; }
section { margin: 1rem 0; padding: 1rem 1.2rem; background: #fff; border: 1px solid #e5e7eb;
  border-radius: .6rem; }
figure { margin: 0 0 1.2rem; }
figcaption, .note { color: #4b5563; font-size: .9rem; }
.warning { background: #fff7ed; border-color: #c2410c; border-left-width: .4rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: #4b5563; font-size: .9rem; padding-bottom: .3rem; }
th, td { padding: .3rem .7rem; text-align: left; border-bottom: 1px solid #e5e7eb; }
th { font-weight: 600; }
th.number, td.number { text-align: right; white-space: nowrap; }
tr.total > * { font-weight: 600; border-bottom: 2px solid #9ca3af; }
a { color: #1d4ed8; }
"""

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
_PLOT_SETTINGS = {"displaylogo": False, "responsive": True}

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
    parts = [_heading(runs, waits), _incomplete(runs), _runs_table(runs)]
    for number, run in enumerate(runs):
        run_id = run["run_id"]
        parts.append(
            _run(
                number,
                run,
                shown_waits(waits_of.get(run_id, [])),
                occupancy_of.get(run_id, []),
                plotted=number < MOST_PLOTTED_RUNS,
            )
        )
    title = runs[0]["run_id"] if len(runs) == 1 else f"{len(runs)} runs"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Waits in the purgatory: {escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f"<script>{plotly.offline.get_plotlyjs()}</script>",
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


def _heading(runs: Sequence[Row], waits: Sequence[Row]) -> str:
    counted = [row for row in waits if row["kind"] == "all"]
    operations = sum(row["operations"] for row in counted if row["outcome"] == "all")
    at_once = sum(row["operations"] for row in counted if row["outcome"] == "immediate")
    waited = operations - at_once
    share = f" ({100 * waited / operations:.1f} %)" if operations else ""
    return (
        "<header><h1>Waits in the purgatory</h1>"
        f"<p>{_count(len(runs), 'run')}, {_count(operations, 'operation')}, of which "
        f"{waited:,}{share} had to wait. Times are those of the runs' own clocks.</p></header>"
    )


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
    name = escape(run["run_id"])
    mark = "" if run["complete"] else " (incomplete)"
    parts = [f'<h2 id="run-{number}">{name}{mark}</h2>']
    if not waits:
        parts.append('<section><p class="note">This run has no operations.</p></section>')
        return "\n".join(parts)
    shares, percentiles, over_time = "", "", ""
    if plotted:
        shares = _figure(f"shares-{number}", outcome_shares(waits), f"Shares of outcomes in {name}")
        if waited(waits):
            percentiles = _figure(
                f"waits-{number}",
                wait_percentiles(waits),
                f"Percentiles of the waits in {name}",
                "From the median to the longest wait, by powers of ten; 0 is drawn at 0.001 ms. "
                "What was completed at once did not wait and is left out.",
            )
        if occupancy:
            over_time = _figure(
                f"sizes-{number}",
                sizes(occupancy),
                f"Size of each purgatory over time in {name}",
                f"Operations that wait, in buckets of {run['bucket_width_us'] / 1000:,g} ms: the "
                "highest number in the bucket, and the mean over its time. Single brokers can be "
                "switched on in the legend.",
            )
    else:
        parts.append(
            f'<p class="note">Plots are drawn for the first {MOST_PLOTTED_RUNS} runs; the table '
            "occupancy has this one too.</p>"
        )
    parts.append(f"<section><h3>Outcomes</h3>{shares}</section>" if shares else "")
    parts.append(f"<section><h3>Waits</h3>{percentiles}{_waits_table(waits)}</section>")
    if over_time:
        parts.append(
            f"<section><h3>Size over time</h3>{over_time}{_sizes_table(occupancy)}</section>"
        )
    return "\n".join(part for part in parts if part)


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
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>\n"
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
