"""Has an API answer what its client may ask for, and refuses the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from purgatory.cluster.api.access.asking import GROUP, TOPIC, Ask
from purgatory.cluster.api.access.rule import Parts, Rule
from purgatory.cluster.api.permitted_operations import NOT_ASKED
from purgatory.cluster.broker import Handler
from purgatory.cluster.protocol.answer_entities import write_answer
from purgatory.cluster.protocol.connection import Answer, waited_for
from purgatory.cluster.protocol.refused_answers import (
    answering_array,
    refused_answer,
    refused_part,
)
from purgatory.kafka.security.authorizer import CLUSTER_NAME, Operation, ResourceType


async def guarded(ask: Ask, rule: Rule, handler: Handler) -> Answer:
    """Answer a request as far as the rule allows it to its client."""
    request = ask.request
    code = rule.whole(ask)
    if code:
        if getattr(request.body, "acks", None) == 0:  # as each error to it (`closes_connection`)
            ask.connection.abort()
            return None
        return write_answer(refused_answer(request, code))
    refused: list[Any] = []
    nothing_left = False
    for parts in rule.parts:
        split = _split(ask, parts)
        if split.refused:
            refused += split.refused
            body = dataclasses.replace(request.body, **{parts.asked: split.allowed})
            request = request._replace(body=body)
            nothing_left = not split.allowed
    if not refused:
        answer = await waited_for(handler(ask.broker, request, ask.connection))
        return _shown(ask, rule, answer) if isinstance(answer, Mapping) else answer
    field = answering_array(request)
    if nothing_left and not rule.answers_none:
        none = refused_answer(request, 0)
        return write_answer(dataclasses.replace(none, **{field: tuple(refused)}))
    answer = await waited_for(handler(ask.broker, request, ask.connection))
    if not isinstance(answer, Mapping):
        return answer
    values = _shown(ask, rule, answer)
    return {**values, field: [*values[field], *refused]}


class _Split(NamedTuple):
    allowed: tuple[Any, ...]
    refused: list[Any]


def _split(ask: Ask, parts: Parts) -> _Split:
    """Tell the elements of a list apart that are allowed from the answers to those that aren't."""
    asked = getattr(ask.body, parts.asked, None) or ()
    codes = [parts.refuses(ask, one) for one in asked]
    if parts.others is not None and any(codes):
        codes = [code or parts.others for code in codes]
    return _Split(
        tuple(one for one, code in zip(asked, codes, strict=True) if not code),
        [
            refused_part(ask.request, parts.asked, one, code)
            for one, code in zip(asked, codes, strict=True)
            if code
        ],
    )


def _shown(ask: Ask, rule: Rule, answer: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(answer)
    for seen in rule.seen:
        if values.get(seen.answered):
            shown = [seen.shown(ask, one) for one in values[seen.answered]]
            values[seen.answered] = [one for one in shown if one is not None]
    for field in ("topics", "groups"):
        if isinstance(values.get(field), (list, tuple)):
            values[field] = [_with_own_operations(ask, one) for one in values[field]]
    bits = values.get("cluster_authorized_operations", NOT_ASKED)
    if bits != NOT_ASKED:
        allowed = _own(ask, ResourceType.CLUSTER, CLUSTER_NAME, bits)
        # As in Kafka: who may not look at the cluster isn't told what else it may do.
        values["cluster_authorized_operations"] = (
            allowed if ask.may_cluster(Operation.DESCRIBE) else 0
        )
    return values


def _with_own_operations(ask: Ask, part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave of the operations on a resource those that the client is allowed."""
    for field, resource, name in (
        ("topic_authorized_operations", TOPIC, "name"),
        ("authorized_operations", GROUP, "group_id"),
    ):
        bits = part.get(field, NOT_ASKED)
        if bits != NOT_ASKED and part.get(name):
            part = {**part, field: _own(ask, resource, part[name], bits)}
    return part


def _own(ask: Ask, resource: ResourceType, name: str, bits: int) -> int:
    allowed = (one for one in Operation if bits >> one & 1 and ask.may(one, resource, name))
    return sum(1 << one for one in allowed)
