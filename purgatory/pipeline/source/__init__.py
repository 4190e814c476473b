"""Topics as a data source of Spark: `spark.read` and `spark.readStream` of format "purgatory"."""

from purgatory.import_names import needs_extra

with needs_extra(__name__, "live"):
    from purgatory.client.errors import BrokerError, DataLossError, OptionError, SourceError
    from purgatory.pipeline.source.data_source import PurgatoryDataSource, register

__all__ = [
    "BrokerError",
    "DataLossError",
    "OptionError",
    "PurgatoryDataSource",
    "SourceError",
    "register",
]
