"""The audit of rows that are in memory, as of a cluster or a simulation in the same program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.analysis.auditing.anomalies import COUNTS_ORDER, WITNESSES_ORDER
from purgatory.analysis.auditing.audit_limits import WITNESSES
from purgatory.analysis.auditing.client_configuration import RunConfiguration
from purgatory.analysis.duckdb_engine.audit_tables import audit_tables
from purgatory.analysis.duckdb_engine.duckdb_connection import duckdb_connection
from purgatory.analysis.duckdb_engine.ordered_results import rows_of
from purgatory.analysis.findings import Findings, findings_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa


def audit_arrow(
    run_id: str,
    tables: Mapping[str, pa.Table],
    configuration: RunConfiguration | None = None,
    *,
    expect: Sequence[str] = (),
    witnesses: int = WITNESSES,
    texts: Mapping[int, bytes | None] | None = None,
) -> Findings:
    """Audit tables of Arrow.

    Args:
        run_id: of all rows; a run that has none is one, too.
        tables: all of `audit_tables.AUDITED`, with all columns of the schema.
        configuration: of the producers and consumers.
        expect, witnesses: as `audit_folders.audit` has them.
        texts: the beginnings of keys and values by their ids, as far as they are known.

    Raises:
        ValueError: as `audit_folders.audit` has it.
    """
    with duckdb_connection() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        of_run = {run_id: configuration or RunConfiguration()}
        audit_tables(connection, of_run, witnesses, expect=expect)
        audit = rows_of(connection, "audit", COUNTS_ORDER)
        shown = rows_of(connection, "witnesses", WITNESSES_ORDER)
        return findings_of(audit, shown, {}, expect, texts)
