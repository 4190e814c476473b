"""The audit of traces on disk, in this process: the tables of the result, and as Parquet."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purgatory.analysis.auditing.anomalies import COUNTS_ORDER, WITNESSES_ORDER
from purgatory.analysis.auditing.audit_limits import WITNESSES
from purgatory.analysis.auditing.audited_traces import AuditedTraces
from purgatory.analysis.auditing.head_configuration import configuration_of
from purgatory.analysis.duckdb_engine.audit_tables import AUDITED, audit_tables
from purgatory.analysis.duckdb_engine.duckdb_connection import duckdb_connection
from purgatory.analysis.duckdb_engine.job_sql import ordered
from purgatory.analysis.duckdb_engine.read_tables import read_tables
from purgatory.analysis.duckdb_engine.row_bound import require_room
from purgatory.analysis.findings import Findings, findings_of
from purgatory.analysis.result_folder import check_output, output_folder
from purgatory.analysis.traces.column_mapping import read_mapping
from purgatory.analysis.traces.survey import Survey, survey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    import duckdb

    from purgatory.analysis.auditing.anomalies import Order

_ORDERS: Mapping[str, Order] = {"audit": COUNTS_ORDER, "witnesses": WITNESSES_ORDER}


def audit(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    expect: Sequence[str] = (),
    witnesses: int = WITNESSES,
    mapping: Path | None = None,
    strict: bool = False,
) -> Findings:
    """Audit traces in this process, without Java.

    Args:
        paths: a folder or several, each a trace or with traces in it at any depth.
        expect: `order`, `once`, `no-loss`, `one-writer`: what is a violation even where the
            settings permit it.
        witnesses: how many cases of each run and anomaly come with their rows.
        mapping: the TOML file that says where columns of other names are.
        strict: stop at a bad row or file; otherwise it is left out and counted.

    Raises:
        TraceError: there are no traces there, or, strict, something in them is bad.
        SessionError: they have more rows than fit this machine.
        ValueError: an unknown expectation, or a number below 0.
    """
    roots = [paths] if isinstance(paths, str) or hasattr(paths, "__fspath__") else list(paths)
    found = _surveyed([Path(root) for root in roots], mapping, strict)
    require_room(found, AUDITED, _command(roots))
    with duckdb_connection() as connection:
        bad_rows = _audit(connection, found, expect, witnesses, strict)
        return findings_of(rows_of(connection, "audit"), rows_of(connection, "witnesses"), bad_rows)


def audit_traces(
    roots: Sequence[Path],
    out: Path | None = None,
    *,
    expect: Sequence[str] = (),
    witnesses: int = WITNESSES,
    overwrite: bool = False,
    progress: bool | None = False,
    mapping: Path | None = None,
    strict: bool = False,
) -> AuditedTraces:
    """Audit all traces in some folders; `auditing.audit_results.audit_traces` without Spark.

    Args:
        roots: folders that are a trace each, or contain traces.
        out: the folder to make, with Parquet in `audit` and `witnesses`; None writes nothing.
        expect, witnesses: as `auditing.audit_job.audit` has them.
        overwrite: replace earlier results in `out`.
        progress: show on standard error how far it is; None does so on a terminal only.
        mapping: the file that says where columns of other names are.
        strict: stop at a bad row or file; otherwise it is set aside and counted.

    Raises:
        PipelineError: one of them is not as it must be; in that case `out` is as it was.
    """
    found = _surveyed(roots, mapping, strict)
    if out is not None:
        check_output(out, [trace.folder for trace in found.traces], overwrite)
    require_room(found, AUDITED, _command(roots, *([] if out is None else ["--out", str(out)])))
    shown = sys.stderr.isatty() if progress is None else progress
    with (
        nullcontext() if out is None else output_folder(out) as folder,
        duckdb_connection(progress=shown) as connection,
    ):
        bad_rows = _audit(connection, found, expect, witnesses, strict)
        if folder is not None:
            for table in _ORDERS:
                _write(connection, table, folder / table)
        return AuditedTraces(rows_of(connection, "audit"), bad_rows)


def _command(roots: Sequence[str | PathLike[str]], *more: str) -> list[str]:
    return ["purgatory", "audit", *(str(root) for root in roots), *more]


def _surveyed(roots: Sequence[Path], mapping: Path | None, strict: bool) -> Survey:
    return survey(roots, None if mapping is None else read_mapping(mapping), strict=strict)


def _audit(
    connection: duckdb.DuckDBPyConnection,
    found: Survey,
    expect: Sequence[str],
    witnesses: int,
    strict: bool,
) -> Mapping[str, int]:
    """Make the tables of the result, and tell how many bad rows of which run are left out."""
    tables = read_tables(connection, found, AUDITED)
    if strict:
        tables.require_none()
    bad_rows = tables.bad_rows()
    configuration = configuration_of(found.traces, bad_rows)
    audit_tables(connection, configuration, witnesses, expect=expect)
    return bad_rows


def _write(connection: duckdb.DuckDBPyConnection, table: str, folder: Path) -> None:
    """Write a table of the result as one file of Parquet in a folder of its own."""
    folder.mkdir()
    place = str(folder / "part-00000.parquet").replace("'", "''")
    rows = f"SELECT * FROM {table} ORDER BY {ordered(_ORDERS[table])}"
    connection.execute(f"COPY ({rows}) TO '{place}' (FORMAT parquet, COMPRESSION zstd)")


def rows_of(connection: duckdb.DuckDBPyConnection, table: str) -> list[dict[str, Any]]:
    """The rows of a table of the result, in its order."""
    chosen = connection.execute(f"SELECT * FROM {table} ORDER BY {ordered(_ORDERS[table])}")
    rows: list[dict[str, Any]] = chosen.to_arrow_table().to_pylist()
    return rows
