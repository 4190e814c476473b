"""A page of HTML: its frame, its parts, the links to rows, and the plots that it draws itself."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib import resources
from typing import Any
from urllib.parse import quote

from purgatory.pipeline.report.plots import Figure
from purgatory.pipeline.result_rows import Row


@dataclass(frozen=True)
class PagePart:
    """The part of one run.

    Attributes:
        number: the run's, for identifiers, which a page has once.
        plotted: whether the run gets plots.
        parquet: where the page finds the Parquet of tables, by their names: links, relative to it.
    """

    number: int
    plotted: bool = True
    parquet: Mapping[str, str] = field(default_factory=dict)

    def anchor(self, section: str) -> str:
        """The identifier of a section."""
        return f"{section}-of-{self.number}"

    def rows(self, table: str) -> str:
        """The identifier of the place where the rows of a table are."""
        return f"rows-of-{table}-{self.number}"

    def anchored(self, table: str, rows: Sequence[Row]) -> list[Row]:
        """Rows of a table with `anchor`, the identifier that each has where it is shown."""
        return [
            {**row, "anchor": f"row-of-{table}-{self.number}-{number}"}
            for number, row in enumerate(rows)
        ]


# A self-contained page of HTML: style, tables, plots, and the script that draws them.
#
# The page may not load anything: its content security policy, which browsers enforce, forbids it.
# All text that is put into it is escaped, never markup.


_STYLE = resources.files(__package__).joinpath("report.css").read_text(encoding="utf-8")
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
# Plots are drawn for the width of the screen, and would be cut off on paper: A4 has 190 mm, which
# is 718 pixels, between margins of 10 mm.
# Links lead into folded parts, and a plot that was folded when it was drawn has no width yet.
_SCRIPT = """
const unfold = () => {
  const name = decodeURIComponent(location.hash.slice(1));
  const place = name && document.getElementById(name);
  for (let one = place; one; one = one.parentElement)
    if (one.tagName === "DETAILS") one.open = true;
  if (place) place.scrollIntoView({block: place.tagName === "TR" ? "center" : "start"});
};
addEventListener("hashchange", unfold);
addEventListener("load", unfold);
addEventListener("toggle", event => event.target.querySelectorAll(".js-plotly-plot").forEach(
  plot => Plotly.Plots.resize(plot)), true);
// A point, or a line as a whole, has the identifier of its row.
addEventListener("load", () => document.querySelectorAll(".js-plotly-plot").forEach(
  plot => plot.on("plotly_click", ({points: [{data, pointNumber}]}) => {
    const name = data.meta?.row ?? [pointNumber].flat().reduce((ids, at) => ids?.[at], data.ids);
    if (!name || !document.getElementById(name)) return;
    location.hash = name;
    unfold();
  })));
const fit = size => document.querySelectorAll(".js-plotly-plot").forEach(
  plot => Plotly.relayout(plot, size));
const FIELDS = ["topic", "client", "broker"];
const TIMES = ["from", "to"];
const valuesOf = (row, field) => JSON.parse(row.dataset[field] ?? "[]");
const lines = () => [...document.querySelectorAll(".js-plotly-plot")].flatMap(
  plot => plot.data.map((line, index) => ({plot, line, index, known: line.visible ?? true})));
addEventListener("load", () => {
  const form = document.querySelector(".filters");
  if (!form) return;
  const rows = [...document.querySelectorAll("tr")].filter(
    row => FIELDS.some(field => row.dataset[field]));
  const drawn = lines().filter(({line}) => line.meta);
  for (const field of FIELDS) {
    const values = new Set([...rows.flatMap(row => valuesOf(row, field)),
      ...drawn.map(({line}) => line.meta[field]).filter(Boolean)]);
    const select = form.elements[field];
    select.append(new Option("all", ""), ...[...values].sort().map(one => new Option(one)));
    select.parentElement.hidden = values.size < 2;
    form.hidden &&= values.size < 2;
  }
  // The address keeps the chosen filters, so that a link leads to the same view.
  const timed = [...document.querySelectorAll(".js-plotly-plot")].filter(
    plot => plot.layout.xaxis.ticksuffix === " s");
  const ends = timed.map(plot => plot.layout.xaxis.range[1]);
  form.querySelector(".times").hidden = !timed.length;
  form.hidden &&= !timed.length;
  const zoom = (begin, end) => timed.forEach((plot, at) => {
    const range = [begin, end > begin ? end : ends[at]];
    if (`${plot.layout.xaxis.range}` !== `${range}`) Plotly.relayout(plot, {"xaxis.range": range});
  });
  const canDrag = matchMedia("(pointer: fine)").matches;  // otherwise a drag scrolls the page
  timed.forEach((plot, at) => {
    if (canDrag) Plotly.relayout(plot, {dragmode: "zoom", "xaxis.fixedrange": false});
    plot.on("plotly_relayout", () => {
      const [begin, end] = plot.layout.xaxis.range.map(one => Math.max(0, +one.toFixed(3)));
      const isWhole = begin === 0 && end >= +ends[at].toFixed(3);
      const chosen = isWhole ? ["", ""] : [begin, end].map(String);
      if (TIMES.every((name, which) => form.elements[name].value === chosen[which])) return;
      TIMES.forEach((name, which) => { form.elements[name].value = chosen[which]; });
      form.dispatchEvent(new Event("change"));
    });
  });
  const fits = (values, chosen) => !values.length || !chosen || values.includes(chosen);
  form.addEventListener("change", () => {
    const chosen = Object.fromEntries(FIELDS.map(field => [field, form.elements[field].value]));
    let hidden = 0;
    for (const row of rows) {
      row.hidden = !FIELDS.every(field => fits(valuesOf(row, field), chosen[field]));
      hidden += row.hidden;
    }
    for (const {plot, line, index, known} of drawn) {
      const values = field => line.meta[field] ? [line.meta[field]] : [];
      const isChosen = FIELDS.some(field => chosen[field] && line.meta[field] === chosen[field]);
      const isShown = FIELDS.every(field => fits(values(field), chosen[field]));
      Plotly.restyle(plot, {visible: isShown ? (isChosen ? true : known) : false}, [index]);
    }
    form.querySelector("output").textContent = hidden ? `${hidden} rows are hidden.` : "";
    zoom(...TIMES.map(name => +form.elements[name].value));
    const state = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    const query = state.size ? `?${state}` : location.pathname;
    history.replaceState(null, "", query + location.hash);
  });
  const asked = [...new URLSearchParams(location.search)].filter(([name]) => form.elements[name]);
  for (const [name, value] of asked) form.elements[name].value = value;
  if (asked.length) form.dispatchEvent(new Event("change"));
});
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach(one => one.open = true);
  fit({autosize: false, width: 700});
});
addEventListener("afterprint", () => fit({autosize: true, width: null}));
"""

Column = tuple[str, bool, Callable[[Row], str]]
"""A column of a table: its heading, whether it holds numbers, and the text of a row's cell."""


def page(title: str, parts: Sequence[str]) -> str:
    """A whole page, as text, with the library that draws plots: some 1.5 million characters.

    Args:
        title: its title, as plain text.
        parts: the body, as HTML.
    """
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="generator" content="purgatory">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            library(),
            f"<script>{_SCRIPT}</script>",
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


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    is_total: Callable[[Row], bool] = lambda _: False,
) -> str:
    """A table under its caption; one wider than the screen scrolls on its own."""

    def cell(tag: str, text: str, is_number: bool) -> str:
        number = ' class="number"' if is_number else ""
        scope = ' scope="col"' if tag == "th" else ""
        return f"<{tag}{scope}{number}>{escape(text)}</{tag}>"

    head = "".join(cell("th", name, is_number) for name, is_number, _ in columns)
    total = ' class="total"'
    body = "\n".join(
        f"<tr{_row_attributes(row)}{total if is_total(row) else ''}>"
        + "".join(cell("td", text(row), is_number) for _, is_number, text in columns)
        + "</tr>"
        for row in rows
    )
    return (
        f'<p class="note">{escape(caption)}</p>'
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(caption)}">'
        f'<table aria-label="{escape(caption)}"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _row_attributes(row: Row) -> str:
    """A row's identifier, and the values that the filters compare: topics, clients, broker."""
    keys = [row["watch_key"]] if row.get("watch_key") else row.get("watch_keys") or ()
    topics = {key.rpartition("-")[0] or key for key in keys}
    if row.get("topic"):
        topics.add(row["topic"])
    values = {
        "topic": sorted(topics),
        "client": [row["group"]] if row.get("group") else [],
        "broker": [] if row.get("broker") in (None, "all") else [str(row["broker"])],
    }
    anchor = f' id="{escape(row["anchor"])}"' if row.get("anchor") else ""
    return anchor + "".join(
        f' data-{name}="{escape(json.dumps(found))}"' for name, found in values.items() if found
    )


FILTERS = """<form class="filters" hidden aria-label="Filter">
<label>Topic <select name="topic"></select></label>
<label>Client <select name="client"></select></label>
<label>Broker <select name="broker"></select></label>
<span class="times"><label>From <input name="from" type="number" min="0" step="any"> s</label>
<label>to <input name="to" type="number" min="0" step="any"> s</label></span>
<output></output></form>"""
"""The filters by topic, client and broker, and the zoom of all plots of time."""


def figure(name: str, plot: Figure, label: str, caption: str = "", where: str = "table") -> str:
    """A plot with its caption, which mentions if a click on a point leads to its row.

    Args:
        name: an identifier that the page has once.
        plot: for plotly.
        label: the content as plain text, for readers who can't see it.
        caption: the text below, as plain text.
        where: the place of the figures.
    """
    if any(any(line.get("ids", ())) or "row" in line.get("meta", ()) for line in plot["data"]):
        caption = f"{caption} A click leads to the row.".lstrip()
    figcaption = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure><div role="img" aria-label="{escape(label)}; the figures are in the {where}">'
        f"{plot_html(name, plot)}</div>{figcaption}</figure>"
    )


def section(heading: str, *parts: str, level: int = 3, anchor: str = "") -> str:
    """A section under its heading, which is plain text; nothing at all without parts.

    Args:
        heading: its heading.
        parts: the content, as HTML.
        level: the level of the heading.
        anchor: its identifier, which the page has once, for links; empty for none.
    """
    content = "".join(parts)
    if not content:
        return ""
    attribute = f' id="{anchor}"' if anchor else ""
    return f"<section{attribute}><h{level}>{escape(heading)}</h{level}>{content}</section>"


def collapsible(summary: str, content: str) -> str:
    """Folded content, which a click unfolds; on paper, it is unfolded."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


# Links to the rows behind a section: CSV that is in the page itself, and Parquet beside it.


MOST_CSV_ROWS = 1_000
"""A table with more rows of a run has no CSV in the page."""


def row_links(part: PagePart, table: str, rows: Sequence[Row], which: str = "Rows") -> str:
    """A line with the links, and the place that sentences link to; nothing without rows.

    Args:
        part: where it stands.
        table: the table's name.
        rows: those of one run, with their columns as the table has them.
        which: the rows in words, where they are not all.
    """
    if not rows:
        return ""
    links = []
    if len(rows) <= MOST_CSV_ROWS:
        data = base64.b64encode(to_csv(rows).encode()).decode()
        links.append(
            f'<a download="{escape(table)}.csv" href="data:text/csv;base64,{data}">CSV</a>'
        )
    if table in part.parquet:
        links.append(f'<a href="{escape(quote(part.parquet[table]))}">Parquet</a>')
    text = " or ".join(links) or "too many for a page; --out writes them as Parquet"
    return (
        f'<p class="note" id="{part.rows(table)}">{which} of the table {escape(table)}: {text}</p>'
    )


def to_csv(rows: Sequence[Row]) -> str:
    """Rows as CSV under the names of their columns; other than plain values as JSON."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows([_cell(value) for value in row.values()] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict | list) else value


# Plots in a page of HTML: the library that draws them, once, and a script for each.
#
# The library is plotly.js's partial bundle of cartesian plots, a third of the whole, kept beside
# this file with its license (the npm package plotly.js-cartesian-dist-min). Plotly's Python package
# ships only the whole; tests use it to check the figures.


_BUNDLE = "plotly-cartesian.min.js"
_SETTINGS = {"displayModeBar": False, "responsive": True, "doubleClick": "reset"}


@cache
def library() -> str:
    """The scripts that a page needs before its first plot."""
    script = resources.files(__package__).joinpath(_BUNDLE).read_text(encoding="utf-8")
    return f"<script>{script}</script>\n<script>const SETTINGS = {_as_script(_SETTINGS)};</script>"


def plot_html(name: str, plot: Figure) -> str:
    """The place of a plot, and the script that draws it there.

    Args:
        name: an identifier that the page has once, of letters, digits and `-`.
        plot: its data and its layout, in plain data.
    """
    height = f"{plot['layout']['height']}px" if "height" in plot["layout"] else "100%"
    data, layout = _as_script(plot["data"]), _as_script(plot["layout"])
    return (
        f'<div style="height:{height}; width:100%;"><div id="{name}" class="plotly-graph-div" '
        'style="height:100%; width:100%;"></div>'
        f'<script>Plotly.newPlot("{name}", {data}, {layout}, SETTINGS);</script></div>'
    )


def _as_script(value: Any) -> str:
    """Plain data as a script's literal: no text in it ends the script, or is markup."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
