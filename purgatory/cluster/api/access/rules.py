"""Who may ask each API for what, as in Kafka: a rule for each, by API key.

There are rules for APIs that nobody serves yet, too: one without a rule must not be served.
"""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.cluster.api.access.cluster_rules import CLUSTER_RULES
from purgatory.cluster.api.access.group_rules import GROUP_RULES
from purgatory.cluster.api.access.rule import Rule
from purgatory.cluster.api.access.topic_rules import TOPIC_RULES
from purgatory.cluster.api.access.transaction_rules import TRANSACTION_RULES

RULES: Mapping[int, Rule] = {**TOPIC_RULES, **GROUP_RULES, **CLUSTER_RULES, **TRANSACTION_RULES}
