"""What operations were watched under: keys such as `orders-0`, and the topics that these are of."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

WATCH_KEYS = "watch_keys"
_PARTITION = r"-\d+\z"


def watch_keys(operations: DataFrame) -> Column:
    """The keys of an operation, an array of strings; null where the trace does not tell them.

    Traces of schema version 1 don't have the column.

    Args:
        operations: the table whose column it is to be.
    """
    if WATCH_KEYS in operations.columns:
        return f.col(WATCH_KEYS)
    return f.lit(None).cast("array<string>")


def topics(operations: DataFrame) -> Column:
    """The topics of an operation's keys, in order and each once; null like the keys.

    A topic is the key without `-` and the partition's number; a key without these is one itself.
    """
    keys = watch_keys(operations)
    several = f.array_sort(f.array_distinct(f.transform(keys, _topic)))
    # Most operations have one key, and a function over an array costs more than the rest.
    return f.when(f.size(keys) == 1, f.array(_topic(keys[0]))).otherwise(several)


def _topic(key: Column) -> Column:
    return f.regexp_replace(key, _PARTITION, "")
