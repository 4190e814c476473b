"""What each API may be asked for by whom, and how Kafka refuses the rest."""

from purgatory.cluster.api.access.asking import Ask, asked_by
from purgatory.cluster.api.access.guard import guarded
from purgatory.cluster.api.access.rules import RULES

__all__ = ["RULES", "Ask", "asked_by", "guarded"]
