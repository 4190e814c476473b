"""The rows of a running run in memory, for an audit without a trace on disk.

Ground rules
------------
* One thread adds rows; `tables`, which copies them, is called on that thread as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pyarrow as pa

from purgatory.trace.table_rows import CommitRow, OperationRow, ReadRow, SendRow, TransactionRow
from purgatory.trace.trace_schema import TABLES
from purgatory.trace.trace_writer import arrow_schema

_BEGINS = {
    "sends": SendRow._fields.index("send_us"),
    "reads": ReadRow._fields.index("time_us"),
    "commits": CommitRow._fields.index("time_us"),
    "transactions": TransactionRow._fields.index("begun_us"),
}
"""The place of a row's time, by table."""

_RECORDED = tuple(table for table in TABLES if table not in ("effects", "operations"))


class RowsInMemory:
    """Keeps the rows of a run; O(rows) memory, some hundred bytes each.

    Operations are not kept: an audit does not need them, and a waiting consumer has two a second.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[object, ...]]] = {table: [] for table in _RECORDED}
        self._from_us = 0
        self.texts: dict[int, bytes | None] = {}
        """The first bytes of keys and values by their ids, one more than is shown."""
        # Not methods: a simulation adds millions of rows.
        self.send: Callable[[SendRow], None] = self._rows["sends"].append
        self.read: Callable[[ReadRow], None] = self._rows["reads"].append
        self.commit: Callable[[CommitRow], None] = self._rows["commits"].append
        self.transaction: Callable[[TransactionRow], None] = self._rows["transactions"].append

    def operation(self, row: OperationRow) -> None:
        """Ignore the row."""

    def forget(self, until_us: int) -> None:
        """Drop all rows until a time, also those that are written later: an unfinished send's."""
        self._from_us = until_us
        for rows in self._rows.values():
            rows.clear()

    def tables(
        self,
        run_id: str,
        names: Sequence[str],
        more_sends: Sequence[SendRow] = (),
        more_reads: Sequence[ReadRow] = (),
    ) -> Mapping[str, pa.Table]:
        """Some tables as they are now, with all columns of the schema. O(rows).

        Args:
            run_id: of all rows.
            names: of the tables; of operations, there are none.
            more_sends, more_reads: rows that are not written yet.
        """
        rows = {name: list(self._rows.get(name, ())) for name in names}
        for name, more in (("sends", more_sends), ("reads", more_reads)):
            if name in rows:
                rows[name] += more
        if self._from_us:
            rows = {name: self._later(name, table_rows) for name, table_rows in rows.items()}
        return {name: _table(name, run_id, table_rows) for name, table_rows in rows.items()}

    def _later(self, name: str, rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
        place = _BEGINS.get(name)  # none has operations, nor effects
        if place is None:
            return rows
        return [row for row in rows if cast(int, row[place]) >= self._from_us]


def _table(name: str, run_id: str, rows: Sequence[tuple[object, ...]]) -> pa.Table:
    schema = arrow_schema(name)
    if not rows:
        return schema.empty_table()
    columns = [[run_id] * len(rows), *zip(*rows, strict=True)]
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )
