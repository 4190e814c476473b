"""Many rows as one, on their way to a job with state.

Spark hands rows to such a job one by one, which costs more than what is done with them. So the rows
of a key in a batch of Arrow's are packed before the shuffle, and the job takes them out at once.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

PACKED = "packed"
"""The column in which the rows are."""


def packed_by(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the rows of the same keys packed together, those of each batch of Arrow's.

    O(n log n) in Python, for the rows of a batch.

    Args:
        rows: with these columns, and others.
        keys: of text or whole numbers, never null.

    Returns:
        The columns of the keys, and `PACKED`, of which `unpacked` makes rows again.
    """
    schema = rows.select(*keys).schema.add(PACKED, "binary")

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield _pack(batch, keys)

    return rows.mapInArrow(pack, schema)


def unpacked(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows that some packed ones hold."""
    tables = [pa.ipc.open_stream(data).read_all() for part in parts for data in part[PACKED]]
    return pa.concat_tables(tables).to_pandas()


def _pack(batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    ordered = batch.take(pc.sort_indices(batch, [(key, "ascending") for key in keys]))
    starts = _starts([ordered.column(key) for key in keys])
    ends = np.append(starts[1:], len(ordered))
    columns: list[Any] = [ordered.column(key).take(pa.array(starts)) for key in keys]
    values = ordered.drop_columns(list(keys))
    pairs = zip(starts.tolist(), ends.tolist(), strict=True)
    columns.append(pa.array([_as_bytes(values.slice(at, to - at)) for at, to in pairs]))
    return pa.RecordBatch.from_arrays(columns, [*keys, PACKED])


def _starts(columns: Sequence[pa.Array]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the places at which any of some columns has another value than before."""
    other = np.zeros(len(columns[0]), np.bool_)
    other[0] = True
    for column in columns:
        changed = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
        other[1:] |= changed.to_numpy(zero_copy_only=False)
    return np.flatnonzero(other)


def _as_bytes(rows: pa.RecordBatch) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, rows.schema) as stream:
        stream.write_batch(rows)
    return out.getvalue()
