"""The audit of tables, by the engine that has them: Spark, or a connection of DuckDB."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, overload

from purgatory.analysis.auditing.audit_limits import SPLIT, SPLIT_US, WITNESSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb
    from pyspark.sql import DataFrame

    from purgatory.analysis.auditing.audit_job import Audit
    from purgatory.analysis.auditing.client_configuration import Configuration
    from purgatory.analysis.duckdb_engine.connection_audit import ConnectionAudit


@overload
def audit(
    sends: DataFrame,
    reads: DataFrame,
    effects: DataFrame | None = None,
    commits: DataFrame | None = None,
    configuration: Configuration = None,
    witnesses: int = WITNESSES,
    *,
    transactions: DataFrame | None = None,
    expect: Sequence[str] = (),
    split: int = SPLIT,
    split_us: int = SPLIT_US,
) -> Audit: ...


@overload
def audit(
    sends: duckdb.DuckDBPyConnection,
    /,
    configuration: Configuration = None,
    witnesses: int = WITNESSES,
    *,
    expect: Sequence[str] = (),
    split: int = SPLIT,
    split_us: int = SPLIT_US,
) -> ConnectionAudit: ...


def audit(*tables: Any, **how: Any) -> Any:
    """Find every anomaly of order and duplicates in some traces, and judge each.

    Args:
        tables: data frames of Spark, or one connection of DuckDB that has the tables.
        how: as `auditing.audit_job.audit` has it for Spark, and
            `duckdb_engine.connection_audit.audit` for DuckDB.

    Raises:
        ValueError: as these have it.
    """
    duckdb = sys.modules.get("duckdb")  # not imported: then nobody has a connection
    if duckdb is not None and tables and isinstance(tables[0], duckdb.DuckDBPyConnection):
        from purgatory.analysis.duckdb_engine import connection_audit

        return connection_audit.audit(*tables, **how)
    from purgatory.analysis.auditing import audit_job

    return audit_job.audit(*tables, **how)
