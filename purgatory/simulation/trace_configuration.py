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

    Its consumers share the partitions once and for all (`assign`), or a coordinator does it again
    and again (`subscribe`).
    """
    return [
        {
            "group": section.group,
            "assignment": "assign" if section.membership == "none" else "subscribe",
            "isolation": section.isolation,
        }
        for section in scenario.consumers
    ]
