"""Errors of a capture, and which errors of the source and the cluster are transient."""

from __future__ import annotations

import pymysql
from confluent_kafka import KafkaError


class CaptureError(Exception):
    """The capture can't start or continue; the message says what is wrong, where, and how to
    correct it. A restart resumes behind the records that are in the topic."""

    is_transient = False
    """Whether the error is transient: a restart may succeed."""


class TransientCaptureError(CaptureError):
    """A transient error of the source or the cluster."""

    is_transient = True


class UnsupportedChangeError(CaptureError):
    """A change that can't be captured, or that the topic rejects; manual action is required."""


_FIRST_CLIENT_ERROR = 2000
"""The first error code of the client itself: the server is unreachable."""
_TRANSIENT = frozenset({1040, 1053, 1077, 1152, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1927})
"""Too many connections, a shutdown, a lost connection, a lock wait timeout."""
_PERMANENT = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._FATAL,
        KafkaError._INVALID_ARG,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.POLICY_VIOLATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
    }
)


def source_error(message: str, error: BaseException) -> CaptureError:
    """The `CaptureError` for an error of the source."""
    number = error.args[0] if isinstance(error, pymysql.Error) and error.args else None
    transient = not isinstance(error, pymysql.Error) or isinstance(error, pymysql.InterfaceError)
    if isinstance(number, int):
        transient = transient or number in _TRANSIENT or number >= _FIRST_CLIENT_ERROR
    return TransientCaptureError(message) if transient else CaptureError(message)


def cluster_error(message: str, error: object) -> CaptureError:
    """The `CaptureError` for an error of the cluster; a missing response is transient."""
    is_permanent = isinstance(error, KafkaError) and error.code() in _PERMANENT
    return CaptureError(message) if is_permanent else TransientCaptureError(message)
