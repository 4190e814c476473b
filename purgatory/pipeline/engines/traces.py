"""Traces that an engine has opened for a job, and the job's tables, the same for both engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from purgatory.pipeline.engines.result_folder import write_table
from purgatory.pipeline.ingest.trace_set import QUARANTINE
from purgatory.pipeline.jobs.chain import literal, order_by
from purgatory.pipeline.result_rows import negative_ids, with_texts

if TYPE_CHECKING:
    from purgatory.pipeline.engines.engine import SqlEngine, TraceReader
    from purgatory.pipeline.engines.result_folder import OutputFolder
    from purgatory.pipeline.ingest.trace_set import RowCheck, Trace, TraceSet
    from purgatory.pipeline.jobs.registry import Job, View
    from purgatory.pipeline.result_rows import Order, Row

_IDS_ORDER: Order = (("number", None),)
_ARROW_KINDS = {"string": pa.string(), "bigint": pa.int64()}


class OpenedTraces:
    """The traces of a job in an engine, and the folder for the results.

    Results are collected once: they are small beside the traces.

    Args:
        engine: computes.
        reader: reads the traces into the engine.
        trace_set: the traces.
        folder: the folder to write into; None: nothing is written.
    """

    def __init__(
        self,
        engine: SqlEngine,
        reader: TraceReader,
        trace_set: TraceSet,
        folder: OutputFolder | None,
    ) -> None:
        self.engine = engine
        self.traces: Sequence[Trace] = trace_set.traces
        self.folder = folder
        self._reader = reader
        self._row_check: RowCheck | None = None
        self._collected: dict[str, pa.Table] = {}

    def check(self, job: Job) -> RowCheck:
        """Read the job's inputs, find bad rows, and write the quarantine if the job has one.

        Raises:
            TraceError: strict, and a row or file is bad.
        """
        check = self._row_check = self._reader.read(job.reads, count=job.always_page)
        if self.folder is not None and job.quarantine != "never":
            if not check.is_clean:
                self._reader.write_quarantine(self.folder)
            elif job.quarantine == "always":
                # Arrow imports pandas to look at Python's objects: these are none.
                columns = [pa.nulls(0, _ARROW_KINDS[kind]) for kind in QUARANTINE.values()]
                empty = pa.Table.from_arrays(columns, names=list(QUARANTINE))
                write_table(empty, self.folder / "quarantine")
        return check

    def compute(self, job: Job, options: Mapping[str, Any]) -> None:
        """Compute the job's tables, after `check`.

        Raises:
            ValueError: an option has an invalid value.
        """
        assert self._row_check is not None, "the rows are checked before"
        for name, table in job.small_tables(self.traces, self._row_check, options).items():
            self.engine.make_table(name, table.columns, table.rows)
        self.engine.run(job.statements(options))

    def write(self, table: str, order: Order) -> None:
        """Write a table into the folder, sorted, as one file of Parquet."""
        assert self.folder is not None, "there is a folder to write into"
        self._collected[table] = self.engine.query(
            f"select * from {table} order by {order_by(order)}"
        )
        write_table(self._collected[table], self.folder / table)

    def rows(self, view: View, order: Order, runs: Sequence[str] | None) -> list[Row]:
        """The ordered rows of a view for some runs; `most` and one more if it `is_cut`."""
        most = None if view.most is None else view.most + view.is_cut
        if view.table in self._collected:
            # In Python: Arrow imports pandas to look at Python's objects.
            return [
                row
                for row in self._collected[view.table].to_pylist()
                if (runs is None or row["run_id"] in runs)
                and all((row[one.column] == one.value) != one.negated for one in view.where)
            ][:most]
        conditions = [one.sql for one in view.where]
        if runs is not None:
            conditions.append(f"run_id in {literal(list(runs))}" if runs else "false")
        limit = "" if most is None else f" limit {most}"
        found = self.engine.query(
            f"select * from {view.table} where {' and '.join(conditions) or 'true'} "
            f"order by {order_by(order)}{limit}"
        )
        return _rows(found)

    def with_texts(self, witnesses: Sequence[Row]) -> Sequence[Row]:
        """Rows of `witnesses` with text ids restored; these are also written to the table `ids`."""
        assert self._row_check is not None, "the rows are checked before"
        if not self._row_check.has_texts:
            return witnesses
        numbers = [(number,) for number in negative_ids(witnesses)]
        self.engine.make_table("witness_ids", {"number": "bigint"}, numbers)
        self._reader.read_id_texts()
        texts = self.engine.query(
            "select distinct number, text from id_texts join witness_ids using (number) "
            f"where cast(number as string) <> text order by {order_by(_IDS_ORDER)}"
        )
        if not texts.num_rows:
            return witnesses
        if self.folder is not None:
            write_table(texts, self.folder / "ids")
        return with_texts(witnesses, {row["number"]: row["text"] for row in texts.to_pylist()})


def _rows(table: pa.Table) -> list[Row]:
    rows: list[Row] = table.to_pylist()
    return rows
