"""Errors of a capture, and which errors of the source and the cluster are transient."""

from __future__ import annotations

import pymysql
from confluent_kafka import KafkaError


class CaptureError(Exception):
    """The capture can't begin or go on; the message names what is wrong, where, and what helps.

    What is in the topic already stays right: a capture that is started again goes on behind it.
    """

    passes = False
    """Whether the same may succeed when it's started again."""


class CaptureFaultError(CaptureError):
    """The source or the cluster is away, or broke off, and may come back."""

    passes = True


class ChangeRefusedError(CaptureError):
    """A change that can't be captured, or that the topic does not take: somebody has to look."""


_LEAST_OF_CLIENT = 2000
"""The first number of the errors that the client itself finds: nobody is there."""
_AWAY = frozenset({1040, 1053, 1077, 1152, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1927})
"""Too many connections, a shutdown, a connection that broke, a lock that wasn't had in time."""
_STAYS = frozenset(
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


def source_error(told: str, error: BaseException) -> CaptureError:
    """The error to raise when the source's server fails with ``error``."""
    number = error.args[0] if isinstance(error, pymysql.Error) and error.args else None
    away = not isinstance(error, pymysql.Error) or isinstance(error, pymysql.InterfaceError)
    if isinstance(number, int):
        away = away or number in _AWAY or number >= _LEAST_OF_CLIENT
    return CaptureFaultError(told) if away else CaptureError(told)


def cluster_error(told: str, error: object) -> CaptureError:
    """The error to raise when the cluster fails with ``error``; no answer may pass."""
    stays = isinstance(error, KafkaError) and error.code() in _STAYS
    return CaptureError(told) if stays else CaptureFaultError(told)
