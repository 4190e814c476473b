"""What can happen to messages between clients and brokers on their way."""

from __future__ import annotations

from dataclasses import dataclass, field

from purgatory.kafka.faults.delays import Delays
from purgatory.kafka.faults.fault import CountedFault
from purgatory.kafka.faults.fault_arguments import api_name


@dataclass(frozen=True)
class MessageFault(CountedFault):
    """It strikes messages between clients and brokers.

    Only those of one ``api``, such as "Produce" (or "produce"), and of the client with this
    ``client_id``, where these are given; of them each with the probability ``share``. With a
    ``seed`` its chance is the same each time.
    """

    api: str | None = None
    client_id: str | None = None
    share: float = 1.0
    seed: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.api is not None:
            object.__setattr__(self, "api", api_name(self.api))

    def concerns(self, broker: int, api: str, client_id: str | None) -> bool:
        """Whether a message is of those of which it strikes some."""
        return (
            self.broker in (None, broker)
            and self.api in (None, api)
            and self.client_id in (None, client_id)
        )


@dataclass(frozen=True)
class AnswerFault(MessageFault):
    """It strikes answers that were made."""


@dataclass(frozen=True)
class LoseAnswers(AnswerFault, kind="lose_answers"):
    """Do what is asked, and lose the answer.

    The client's connection is ``cut`` with it. If not, the client waits for its timeout.
    """

    cut: bool = True


@dataclass(frozen=True)
class DelayAnswers(AnswerFault, Delays, kind="delay_answers"):
    """Send answers later: by ``by_ms``, or by chance.

    ``distribution``: "fixed"; "uniform", from ``by_ms`` to ``to_ms``; "exponential", with the mean
    ``by_ms``; "lognormal", with the median ``by_ms`` and the 75th percentile ``p75_ms``.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_delays()


@dataclass(frozen=True)
class DuplicateAnswers(AnswerFault, kind="duplicate_answers"):
    """Send answers twice."""


@dataclass(frozen=True)
class TearAnswers(AnswerFault, kind="tear_answers"):
    """Send a part of each answer, and close the connection.

    ``keep_bytes``: how many bytes come, the four of the length among them, but never all; None:
    half of them.
    """

    is_simulated = False
    keep_bytes: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class SlowAnswers(AnswerFault, kind="slow_answers"):
    """Send answers slowly: at ``bytes_per_s``."""

    is_simulated = False
    bytes_per_s: int = field(kw_only=True)


@dataclass(frozen=True)
class RefuseProduces(CountedFault, kind="refuse_produces"):
    """Refuse produces: clients send them again, and those behind overtake.

    They are refused with NOT_ENOUGH_REPLICAS.
    """
