"""ApiVersions: which APIs are served, in which versions."""

from __future__ import annotations

from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import SUPPORTED, Request

_UNSUPPORTED_VERSION = 35
_LEAST_0_SINCE = 4
"""Before, clients don't know features whose least level is 0."""
_PRODUCE = 0
_PRODUCE_OLDEST_TOLD = 0
"""It is told and not served, as by Kafka 4: without it, older librdkafkas don't compress."""


_TRANSACTIONS = "transaction.version"
_TRANSACTIONS_LEVEL = 2
"""Leaders take partitions into transactions, and each end raises the epoch, for who asks so."""


async def api_versions(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Answer with all APIs; also, as Kafka does, to a request in a version that is too new."""
    return {
        "error_code": _UNSUPPORTED_VERSION if request.body is None else 0,
        "api_keys": [
            {
                "api_key": key,
                "min_version": _PRODUCE_OLDEST_TOLD if key == _PRODUCE else oldest,
                "max_version": newest,
            }
            for key, (oldest, newest) in SUPPORTED.items()
        ],
        "throttle_time": 0,
        "supported_features": [
            {"name": _TRANSACTIONS, "min_version": 0, "max_version": _TRANSACTIONS_LEVEL}
        ]
        * (request.api_version >= _LEAST_0_SINCE),
        "finalized_features_epoch": 0,
        "finalized_features": [
            {
                "name": _TRANSACTIONS,
                "min_version_level": _TRANSACTIONS_LEVEL,
                "max_version_level": _TRANSACTIONS_LEVEL,
            }
        ],
    }
