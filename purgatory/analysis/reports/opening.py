"""How the part of a run opens: what happened, each sentence with links to its plot and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from purgatory.analysis.reports.page_part import PagePart
from purgatory.analysis.reports.severity import Said, Severity

_MARKS: Mapping[Severity, str] = {
    Severity.INCOMPLETE: "incomplete",
    Severity.VIOLATION: "violated",
    Severity.HARM: "harm",
    Severity.DOUBT: "unclear",
    Severity.NOTE: "note",
    Severity.FINE: "fine",
}


def opening(part: PagePart, said: Sequence[Said], below: str) -> str:
    """The sentences, the worst first.

    Args:
        part: of which run.
        said: the sentences.
        below: the sections that follow, as HTML: what is not there is not linked.
    """
    items = "".join(f"<li>{_mark(one)} {_said(part, one, below)}</li>" for one in said)
    return f'<ul class="said">{items}</ul>' if items else ""


def _mark(one: Said) -> str:
    broken = " broken" if one.severity < Severity.DOUBT else ""
    return f'<span class="mark{broken}">{_MARKS[one.severity]}</span>'


def _said(part: PagePart, one: Said, below: str) -> str:
    places = {
        "plot": part.anchor(one.section),
        "rows": part.rows(one.table or one.section),
    }
    links = [
        f'<a href="#{place}" aria-label="{name}: {escape(one.text)}">{name}</a>'
        for name, place in places.items()
        if f'id="{place}"' in below
    ]
    return f"{escape(one.text)} <span class='links'>{' '.join(links)}</span>"
