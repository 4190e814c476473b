"""Topics as a data source of Spark: `spark.read` and `spark.readStream` of format "purgatory".

Spark is imported with the first of these names: `client_settings` and `errors` need none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from purgatory.import_names import needs_extra

if TYPE_CHECKING:
    from purgatory.source.data_source import PurgatoryDataSource as PurgatoryDataSource
    from purgatory.source.data_source import register as register
    from purgatory.source.errors import BrokerError as BrokerError
    from purgatory.source.errors import DataLossError as DataLossError
    from purgatory.source.errors import OptionError as OptionError
    from purgatory.source.errors import SourceError as SourceError

__all__ = [
    "BrokerError",
    "DataLossError",
    "OptionError",
    "PurgatoryDataSource",
    "SourceError",
    "register",
]

if not TYPE_CHECKING:  # or it would let any name pass

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        inner = "errors" if name.endswith("Error") else "data_source"
        with needs_extra(__name__, "live"):
            return getattr(import_module(f"{__name__}.{inner}"), name)
