"""A page of HTML that holds all it needs: its style, its tables, its plots and what draws them.

The page may not load anything, and says so itself by a content security policy, which browsers
keep to. Whatever text is put into it is text, never markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from importlib import resources

from purgatory.analysis.reports.plots_in_page import drawing, has_library, library
from purgatory.analysis.reports.report_plots import Figure
from purgatory.analysis.result_rows import Row

_STYLE = resources.files(__package__).joinpath("report.css").read_text(encoding="utf-8")
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
# Plots are drawn for the width of the screen, and would be cut off on paper: A4 has 190 mm, which
# is 718 pixels, between margins of 10 mm.
# Links lead into what is folded, and a plot that was folded when it was drawn has no width yet.
_FIT_PAPER = """
const unfold = () => {
  const name = decodeURIComponent(location.hash.slice(1));
  const place = name && document.getElementById(name);
  for (let one = place; one; one = one.parentElement)
    if (one.tagName === "DETAILS") one.open = true;
  if (place) place.scrollIntoView();
};
addEventListener("hashchange", unfold);
addEventListener("load", unfold);
addEventListener("toggle", event => event.target.querySelectorAll(".js-plotly-plot").forEach(
  plot => Plotly.Plots.resize(plot)), true);
const fit = size => document.querySelectorAll(".js-plotly-plot").forEach(
  plot => Plotly.relayout(plot, size));
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach(one => one.open = true);
  fit({autosize: false, width: 700});
});
addEventListener("afterprint", () => fit({autosize: true, width: null}));
"""

_NO_PLOTS = (
    '<p class="note" role="note">There are no plots in this page, since plotly is not installed: '
    "pip install 'kafka-purgatory[page]' and make it again.</p>"
)

Column = tuple[str, bool, Callable[[Row], str]]
"""A column of a table: its heading, whether it holds numbers, and the text of a row's cell."""


def page(title: str, parts: Sequence[str], *, with_plots: bool = True, made_by: str = "") -> str:
    """A whole page, as text.

    Args:
        title: its title, as plain text.
        parts: what its body has, as HTML.
        with_plots: whether it has what draws plots: some five million characters.
        made_by: what made it, as plain text, for who finds the page.
    """
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta name="generator" content="{escape(made_by or "purgatory")}">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            library() if with_plots else "",
            f"<script>{_FIT_PAPER}</script>",
            "</head>",
            "<body>",
            "<main>",
            *parts,
            *([] if has_library() or not with_plots else [_NO_PLOTS]),
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
    """A table under its caption; one that is too wide for the screen scrolls in itself."""

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
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(caption)}">'
        f'<table aria-label="{escape(caption)}"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def figure(name: str, plot: Figure, label: str, caption: str = "", where: str = "table") -> str:
    """A plot with its caption.

    Args:
        name: an identifier that the page has once.
        plot: what plotly draws.
        label: what it shows, as plain text, for readers who can't see it.
        caption: what stands below it, as plain text.
        where: what has the figures that it shows.
    """
    if not has_library():
        return ""
    figcaption = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure><div role="img" aria-label="{escape(label)}; the figures are in the {where}">'
        f"{drawing(name, plot)}</div>{figcaption}</figure>"
    )


def section(heading: str, *parts: str, level: int = 3, anchor: str = "") -> str:
    """A section under its heading, which is plain text; nothing at all without parts.

    Args:
        heading: its heading.
        parts: what it has, as HTML.
        level: the level of the heading.
        anchor: its identifier, which the page has once, for links; empty for none.
    """
    content = "".join(parts)
    if not content:
        return ""
    named = f' id="{anchor}"' if anchor else ""
    return f"<section{named}><h{level}>{escape(heading)}</h{level}>{content}</section>"


def folded(summary: str, content: str) -> str:
    """Content that is shown when it is asked for: on paper, it is unfolded."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"
