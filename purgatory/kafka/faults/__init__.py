"""What can go wrong in a cluster: a class for each kind of fault, with its arguments.

``KINDS`` lists all kinds; from it they are asked for over HTTP, by a plan, and on the command line.
"""

from purgatory.kafka.faults.broker_faults import (
    CutConnections,
    CutLink,
    FreezeMetadata,
    JumpClock,
    Kill,
    Pause,
    ShrinkIsr,
    SlowFollower,
    StallFollower,
)
from purgatory.kafka.faults.content_faults import (
    CHOICES,
    Answer,
    ErrorFault,
    LoadCoordinator,
    Throttle,
    TurnBackEpochs,
)
from purgatory.kafka.faults.delays import Distribution
from purgatory.kafka.faults.fault import (
    KINDS,
    BrokerFault,
    CountedFault,
    Fault,
    OneOrAllFault,
    fault_of,
)
from purgatory.kafka.faults.message_faults import (
    AnswerFault,
    DelayAnswers,
    DuplicateAnswers,
    LoseAnswers,
    MessageFault,
    RefuseProduces,
    SlowAnswers,
    TearAnswers,
)

__all__ = [
    "CHOICES",
    "KINDS",
    "Answer",
    "AnswerFault",
    "BrokerFault",
    "CountedFault",
    "CutConnections",
    "CutLink",
    "DelayAnswers",
    "Distribution",
    "DuplicateAnswers",
    "ErrorFault",
    "Fault",
    "FreezeMetadata",
    "JumpClock",
    "Kill",
    "LoadCoordinator",
    "LoseAnswers",
    "MessageFault",
    "OneOrAllFault",
    "Pause",
    "RefuseProduces",
    "ShrinkIsr",
    "SlowAnswers",
    "SlowFollower",
    "StallFollower",
    "TearAnswers",
    "Throttle",
    "TurnBackEpochs",
    "fault_of",
]
