"""The first question to a cluster: whether it answers, and which topics it has."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

_ASK_FOR_S = 2.0


class NoAnswerError(Exception):
    """No cluster answers, or not us; the message is the reason.

    Args:
        passes: whether one may, if it's asked again.
    """

    def __init__(self, reason: str, *, passes: bool) -> None:
        super().__init__(reason)
        self.passes = passes


def first_answer(
    bootstrap_servers: str, client: Mapping[str, Any], timeout_s: float
) -> tuple[AdminClient, frozenset[str]]:
    """Return a client that the cluster has answered, and the topics that it has.

    A wrong password or an unknown certificate is told at once: waiting doesn't mend it.

    Args:
        bootstrap_servers: `HOST:PORT,HOST:PORT`.
        client: more settings, as librdkafka names them.
        timeout_s: how long to wait for an answer.

    Raises:
        NoAnswerError: there is none, or the settings are wrong.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    told: list[KafkaError] = []
    deadline = time.monotonic() + timeout_s
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "log_level": 0,
        "error_cb": told.append,
        **client,
    }
    try:
        admin = AdminClient(settings)
    except KafkaException as error:
        raise NoAnswerError(_shown(error.args[0]), passes=False) from error
    while True:
        left_s = deadline - time.monotonic()
        try:
            topics = admin.list_topics(timeout=max(0.0, min(_ASK_FOR_S, left_s))).topics
            return admin, frozenset(topics)
        except KafkaException as error:
            admin.poll(0)  # what went wrong with connections is told in here
            refusal = _refusal(told)
            if refusal is not None or left_s <= _ASK_FOR_S:
                shown = _shown(refusal or error.args[0])
                raise NoAnswerError(shown, passes=refusal is None) from error


def _refusal(told: list[KafkaError]) -> KafkaError | None:
    """The first error that waiting doesn't mend."""
    from confluent_kafka import KafkaError

    hopeless = {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._SSL,
    }
    return next((error for error in told if error.code() in hopeless), None)


def _shown(error: KafkaError) -> str:
    from confluent_kafka import KafkaError

    reason = str(error.str()).partition(" (after ")[0]
    if error.code() == KafkaError._TRANSPORT:
        reason += " (if it speaks TLS or asks for a password: --client security.protocol=...)"
    return reason
