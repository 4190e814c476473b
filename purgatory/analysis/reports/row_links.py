"""Links to the rows behind a section: CSV that is in the page itself, and Parquet beside it."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from purgatory.analysis.reports.page_part import PagePart
from purgatory.analysis.result_rows import Row

MOST_CSV_ROWS = 2_000
"""A table with more rows of a run has no CSV in the page."""


def row_links(part: PagePart, table: str, rows: Sequence[Row], which: str = "Rows") -> str:
    """A line with the links, and the place that sentences link to; nothing without rows.

    Args:
        part: where it stands.
        table: the table's name.
        rows: those of one run, with their columns as the table has them.
        which: what these rows are in words, where they are not all of them.
    """
    if not rows:
        return ""
    links = []
    if len(rows) <= MOST_CSV_ROWS:
        data = base64.b64encode(csv_of(rows).encode()).decode()
        links.append(
            f'<a download="{escape(table)}.csv" href="data:text/csv;base64,{data}">CSV</a>'
        )
    if table in part.parquet:
        links.append(f'<a href="{escape(quote(part.parquet[table]))}">Parquet</a>')
    said = " or ".join(links) or "too many for a page; --out writes them as Parquet"
    return (
        f'<p class="note" id="{part.rows(table)}">{which} of the table {escape(table)}: {said}</p>'
    )


def csv_of(rows: Sequence[Row]) -> str:
    """Rows as CSV under the names of their columns; what is no plain value, as JSON."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows([_cell(value) for value in row.values()] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict | list) else value
