"""The audit of rows that are in memory, as of a cluster or a simulation in the same program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.analysis.auditing.anomalies import COUNTS_ORDER, WITNESSES_ORDER
from purgatory.analysis.auditing.audit_limits import WITNESSES
from purgatory.analysis.duckdb_engine.audit_tables import audit_tables
from purgatory.analysis.duckdb_engine.duckdb_connection import duckdb_connection
from purgatory.analysis.duckdb_engine.ordered_results import rows_of
from purgatory.analysis.findings import Findings, findings_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from purgatory.analysis.auditing.client_configuration import Configuration


def audit_arrow(
    tables: Mapping[str, pa.Table],
    configuration: Configuration = None,
    *,
    expect: Sequence[str] = (),
    witnesses: int = WITNESSES,
) -> Findings:
    """Audit tables of Arrow.

    Args:
        tables: all of `audit_tables.AUDITED`, with all columns of the schema.
        configuration: of the producers and consumers.
        expect, witnesses: as `audit_folders.audit` has them.

    Raises:
        ValueError: as `audit_folders.audit` has it.
    """
    with duckdb_connection() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        audit_tables(connection, configuration, witnesses, expect=expect)
        audit = rows_of(connection, "audit", COUNTS_ORDER)
        return findings_of(audit, rows_of(connection, "witnesses", WITNESSES_ORDER), {})
