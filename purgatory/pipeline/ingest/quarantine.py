"""The quarantine: the table of bad rows and files of traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.trace_set import QuarantinedFile
from purgatory.pipeline.result_rows import Order, Row

QUARANTINE: Mapping[str, str] = {
    "run_id": "string",
    "table": "string",
    "file": "string",
    "line": "bigint",
    "rows": "bigint",
    "reason": "string",
    "detail": "string",
    "content": "string",
}
"""The columns of the table `quarantine`, with Spark's types."""

QUARANTINE_ORDER: Order = (("file", None), ("line", None))


def quarantine_row(file: QuarantinedFile) -> tuple[str | int | None, ...]:
    """The row of a quarantined file: without a line, and without content."""
    where = str(file.path)
    detail = file.detail.removeprefix(f"{where}: ")
    return (file.run_id, file.table, where, None, file.rows, file.reason, detail, None)


def first_error(file: str, line: int | None, reason: str, detail: str) -> TraceError:
    """The error for the first bad row or file, where none is allowed."""
    location = file if line is None else f"{file}:{line}"
    return TraceError(f"{location}: {reason}: {detail}")


def quarantine_lines(counts: Sequence[Row]) -> list[str]:
    """The counts in words, a line per table and reason."""
    lines = []
    for row in counts:
        parts = [f"{row['rows']:,} row{'s' * (row['rows'] != 1)}"] if row["rows"] else []
        if row["files"]:
            parts.append(f"{row['files']:,} file{'s' * (row['files'] != 1)} as a whole")
        lines.append(f"{row['table'] or 'run.json'}: {row['reason']}: {', '.join(parts)}")
    return lines
