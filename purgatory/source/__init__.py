"""Topics as a data source of Spark: `spark.read` and `spark.readStream` of format "purgatory"."""

from purgatory.source.data_source import PurgatoryDataSource, register
from purgatory.source.errors import BrokerError, DataLossError, OptionError, SourceError

__all__ = [
    "BrokerError",
    "DataLossError",
    "OptionError",
    "PurgatoryDataSource",
    "SourceError",
    "register",
]
