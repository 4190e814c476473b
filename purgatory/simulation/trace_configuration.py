"""How the clients of a scenario are configured, as the head of its trace tells it.

These are the settings by which an audit decides whether a duplicate or a change of order is a
violation, or is permitted: in the words of Kafka's clients, not of the scenario.
"""

from __future__ import annotations

from typing import Any

from purgatory.simulation.scenario import Scenario


def producers_configuration(scenario: Scenario) -> list[dict[str, Any]]:
    """One entry for each producer group. `acks` is 0, 1 or -1 (all), as in the table `sends`.

    `single_writer` says that one producer alone writes to each partition: here, only where the
    whole scenario has no more than one.
    """
    single_writer = sum(section.count for section in scenario.producers) == 1
    return [
        {
            "group": section.group,
            "acks": -1 if section.acks == "all" else section.acks,
            "idempotence": section.idempotence,
            "max_in_flight": section.max_in_flight,
            "retries": section.retries,
            "single_writer": single_writer,
        }
        for section in scenario.producers
    ]


def consumers_configuration(scenario: Scenario) -> list[dict[str, Any]]:
    """One entry for each consumer group.

    Its consumers read the partitions that they are given once and for all (`assign`), or go back to
    what is committed: where a coordinator deals the partitions out, or where transactions are
    aborted in which other records are made of what they read (`subscribe`).
    """
    sent_on = {one.transactions.reads for one in scenario.producers if one.transactions}
    return [
        {
            "group": section.group,
            "assignment": "assign"
            if section.membership == "none" and section.group not in sent_on
            else "subscribe",
            "isolation": section.isolation,
        }
        for section in scenario.consumers
    ]
