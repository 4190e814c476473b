"""The audit of many rows at once, each by the guarantees of its producer.

One audit takes most of a second, whatever the number of records: as long as a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from purgatory.pipeline.engines.duckdb.audit import audit_tables
from purgatory.pipeline.engines.duckdb.connection import duckdb_connection
from purgatory.pipeline.engines.duckdb.sql_engine import DuckDBEngine
from purgatory.pipeline.jobs.audit.anomalies import AUDIT_TABLES, PERMITTED, VIOLATION
from purgatory.pipeline.jobs.audit.client_settings import observed
from purgatory.pipeline.jobs.audit.findings import findings_of
from purgatory.virtual.properties import EXACTLY_ONCE, NO_LOSS, ORDER, Property
from tests.world.history import History
from tests.world.rows import parse_row

_GUARANTEES: Final[Mapping[str, Sequence[Property]]] = {
    "plain": (NO_LOSS,),
    "idempotent": (NO_LOSS, ORDER, EXACTLY_ONCE),
    "transactional": (NO_LOSS, ORDER, EXACTLY_ONCE),
}
"""By the kind of producer."""

_EXPECT: Final = sorted({name for one in (NO_LOSS, ORDER, EXACTLY_ONCE) for name in one.expect})


def audit_rows(histories: Mapping[str, History]) -> None:
    """Add the anomalies to the histories, which are by the names of their rows."""
    tables = {
        name: pa.concat_tables(
            _of_run(history.tables[name], row) for row, history in histories.items()
        )
        for name in AUDIT_TABLES
    }
    with duckdb_connection(rows=sum(map(len, tables.values()))) as connection:
        for name, table in tables.items():
            connection.register(name, table)
        engine = DuckDBEngine(connection)
        audit_tables(engine, dict.fromkeys(histories, observed(None)), 3, expect=_EXPECT)
        audit = engine.query("select * from audit order by all").to_pylist()
        witnesses = engine.query("select * from witnesses").to_pylist()
    for finding in findings_of(audit, witnesses, {}, _EXPECT):
        guarantees = _GUARANTEES[parse_row(finding.run_id)["producer"]]
        if finding.verdict in (VIOLATION, PERMITTED) and any(
            finding.anomaly in one.broken_by for one in guarantees
        ):
            text = " ".join(str(finding).split())
            histories[finding.run_id].anomalies.append(text)


def _of_run(table: pa.Table, run_id: str) -> pa.Table:
    place = table.column_names.index("run_id")
    column = pa.array([run_id] * len(table), table.schema.field(place).type)
    return table.set_column(place, table.schema.field(place), column)
