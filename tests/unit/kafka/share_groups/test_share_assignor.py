"""The assignor of share groups, as members come and go."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from purgatory.kafka.groups.assignors import Subscriber
from purgatory.kafka.groups.share_group import assign_shares

TOPICS = [UUID(int=number) for number in (1, 2, 3)]
members = st.dictionaries(
    st.sampled_from("abcdefghij"), st.frozensets(st.sampled_from(TOPICS)), max_size=10
)


@given(
    counts=st.fixed_dictionaries({topic: st.integers(0, 5) for topic in TOPICS}),
    turns=st.lists(members, min_size=1, max_size=4),
)
def test_share_assignor_leaves_no_partition_or_member_out(
    counts: dict[UUID, int], turns: list[dict[str, frozenset[UUID]]]
) -> None:
    assigned: dict[str, frozenset[object]] = {}
    for topics in turns:
        subscribers = {
            member: Subscriber(of, target=assigned.get(member, frozenset()))  # type: ignore[arg-type]
            for member, of in topics.items()
        }
        numbers = {topic: range(count) for topic, count in counts.items()}
        assigned = dict(assign_shares(subscribers, numbers))
        assert assigned.keys() == topics.keys()
        for of in set(topics.values()):
            alike = [member for member, one in topics.items() if one == of]
            there = {(topic, number) for topic in of for number in range(counts[topic])}
            holders = Counter(one for member in alike for one in assigned[member])
            assert set(holders) == there
            sizes = [len(assigned[member]) for member in alike]
            if there:
                assert min(sizes) >= 1
                assert max(sizes) - min(sizes) <= 1
                assert set(holders.values()) == {-(-len(alike) // len(there))}
        again = assign_shares(
            {
                member: Subscriber(of, target=assigned[member])  # type: ignore[arg-type]
                for member, of in topics.items()
            },
            numbers,
        )
        assert again == assigned, "nobody has to change anything"
