"""Spark's classes for data sources; without PySpark, stand-ins.

`purgatory apply` reads topics by the same reader without Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if not TYPE_CHECKING:
    try:
        from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ModuleNotFoundError:

        class DataSourceStreamReader: ...

        class InputPartition: ...

        class SupportsTriggerAvailableNow: ...

        class ReadLimit: ...

        class ReadAllAvailable(ReadLimit): ...

        @dataclass
        class ReadMaxRows(ReadLimit):
            max_rows: int
else:
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

__all__ = [
    "DataSourceStreamReader",
    "InputPartition",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]
