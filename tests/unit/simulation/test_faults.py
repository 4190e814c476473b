"""Each fault does what it says, and what follows from it follows."""

from __future__ import annotations

from pathlib import Path

from tests.unit.simulation.running import Ran, run_scenario

CLUSTER = """
name = "faulty"
duration_ms = {duration_ms}

[topic]
partitions = 1

[cluster]
{cluster}

[[producers]]
group = "orders"
count = 4
rate = 50.0
acks = "all"
timeout_ms = 300
{producers}

[[faults]]
{fault}
"""


def run_with(
    fault: str,
    *,
    duration_ms: int = 4_000,
    cluster: str = "",
    producers: str = "",
    trace: Path | None = None,
) -> Ran:
    text = CLUSTER.format(
        duration_ms=duration_ms, cluster=cluster, producers=producers, fault=fault
    )
    return run_scenario(text, trace)


STALL = 'kind = "stall_follower"\nbroker = 2\nat_ms = 1000\nduration_ms = 2000'


def test_stalled_follower_expires_produces_and_causes_duplicates(tmp_path: Path) -> None:
    ran = run_with(
        STALL,
        cluster="replica_lag_time_max_ms = 9000",
        producers="request_timeout_ms = 5000",
        trace=tmp_path / "trace",
    )
    assert ran.told("isr_changed") == []
    produce = ran.operations("Produce", "producer")
    assert produce["expired"] > 10
    # Truthful: the record is in the leader's log, so the answer is a timeout and no refusal.
    expired = [row for row in ran.rows("sends") if row["error"] == "REQUEST_TIMED_OUT"]
    assert len(expired) == produce["expired"]
    assert {row["outcome"] for row in expired} == {"unknown"}
    waits_us = [row["wait_us"] for row in ran.rows("operations") if row["outcome"] == "expired"]
    assert min(waits_us) >= 300_000
    counts = ran.producers("orders")
    assert counts["duplicates"] > 0
    assert counts["acknowledged"] == counts["records"]


def test_long_stalled_follower_leaves_the_isr_and_rejoins() -> None:
    ran = run_with(STALL, cluster="replica_lag_time_max_ms = 500")
    shrunk, grown = ran.told("isr_changed")
    assert (shrunk["before"], shrunk["now"]) == ([0, 1, 2], [0, 1])
    assert 1_500 <= shrunk["at_ms"] <= 1_750  # looked for every half of the permitted lag
    assert (grown["before"], grown["now"]) == ([0, 1], [0, 1, 2])
    assert 3_000 <= grown["at_ms"] <= 3_100
    # Between the two, nobody waits for the laggard.
    produce = ran.operations("Produce", "producer")
    assert 0 < produce["expired"] < 20
    assert ran.producers("orders")["acknowledged"] == ran.producers("orders")["records"]


def test_killed_leader_is_replaced_and_returns_as_follower(tmp_path: Path) -> None:
    ran = run_with(
        'kind = "kill"\nbroker = 0\nat_ms = 1000\nduration_ms = 1500',
        cluster="session_timeout_ms = 400",
        trace=tmp_path / "trace",
    )
    (elected,) = ran.told("leader_elected")
    assert (elected["leader"], elected["isr"], elected["clean"]) == (1, [1, 2], True)
    assert elected["at_ms"] == 1_400
    (grown,) = ran.told("isr_changed")
    assert grown["now"] == [0, 1, 2] and grown["at_ms"] > 2_500
    counts = ran.producers("orders")
    assert counts["acknowledged"] == counts["records"] and counts["lost"] == 0
    # Operations that waited in the dead process were neither completed nor expired.
    cancelled = [row for row in ran.rows("operations") if row["outcome"] == "cancelled"]
    assert {row["broker"] for row in cancelled} == {0}
    assert {row["end_us"] for row in cancelled} == {1_000_000}
    served = {row["broker"] for row in ran.rows("operations") if row["purgatory"] == "Produce"}
    assert served == {0, 1}


def test_killed_follower_delays_produces_until_its_session_expires() -> None:
    ran = run_with('kind = "kill"\nbroker = 2\nat_ms = 1000', cluster="session_timeout_ms = 200")
    assert ran.summary["elections"] == 0
    produce = ran.operations("Produce", "producer")
    assert produce["expired"] == 0
    assert 190_000 <= produce["wait_us"]["max"] <= 250_000
    assert ran.producers("orders")["acknowledged"] == ran.producers("orders")["records"]


# Broker 2 stalls and leaves the in-sync set; 1 dies, then 0: only 2 is left, which lacks records.
LAST_ONE_LAGS = """kind = "stall_follower"
broker = 2
at_ms = 500
duration_ms = 1800
[[faults]]
kind = "kill"
broker = 1
at_ms = 1500
[[faults]]
kind = "kill"
broker = 0
at_ms = 2200
duration_ms = 2500
"""
LAGGING = "session_timeout_ms = 200\nreplica_lag_time_max_ms = 400\n"


def test_partition_waits_for_an_in_sync_replica_by_default() -> None:
    ran = run_with(LAST_ONE_LAGS, cluster=LAGGING)
    assert ran.summary["unclean_elections"] == 0
    nobody, again = ran.told("leader_elected")
    assert (nobody["leader"], nobody["isr"]) == (-1, [0])
    assert again["leader"] == 0 and again["at_ms"] >= 4_700
    assert ran.producers("orders")["lost"] == 0


def test_unclean_election_loses_records_that_the_leader_lacks() -> None:
    ran = run_with(
        LAST_ONE_LAGS,
        cluster=LAGGING + "unclean_leader_election = true",
        producers="retries = 3",
    )
    assert ran.summary["unclean_elections"] == 1
    (unclean,) = [one for one in ran.told("leader_elected") if not one["clean"]]
    assert (unclean["leader"], unclean["isr"]) == (2, [2])
    assert ran.producers("orders")["lost"] > 0


LOST_ANSWERS = 'kind = "lose_responses"\napi = "produce"\ncut = false\nat_ms = 1000\ncount = 3'
QUICK = "request_timeout_ms = 400\nretry_backoff_ms = 50\n"


def test_lost_response_causes_a_retry_and_a_duplicate(tmp_path: Path) -> None:
    ran = run_with(LOST_ANSWERS, producers=QUICK, trace=tmp_path / "trace")
    unsure = [row for row in ran.rows("sends") if row["error"] == "DISCONNECTED"]
    assert unsure and all(row["outcome"] == "unknown" for row in unsure)
    again = [row for row in ran.rows("sends") if row["attempt"] == 2]
    assert {row["value_id"] for row in again} == {row["value_id"] for row in unsure}
    counts = ran.producers("orders")
    assert counts["acknowledged"] == counts["records"]
    assert counts["duplicates"] >= 3


def test_idempotent_retry_of_a_lost_response_adds_no_duplicate() -> None:
    ran = run_with(LOST_ANSWERS, producers=QUICK + "idempotence = true")
    counts = ran.producers("orders")
    assert counts["retries"] >= 3
    assert (counts["duplicates"], counts["reorderings"], counts["lost"]) == (0, 0, 0)
    assert counts["acknowledged"] == counts["records"] == counts["committed"]


def test_lost_response_without_retries_has_unknown_outcome() -> None:
    ran = run_with(LOST_ANSWERS, producers=QUICK + "retries = 0\nmax_in_flight = 1")
    counts = ran.producers("orders")
    assert counts["failed"] == counts["unknown"] == 3
    assert counts["committed"] == counts["records"]
    assert counts["duplicates"] == 0


def test_lost_requests_never_reach_the_log() -> None:
    ran = run_with(
        'kind = "lose_requests"\napi = "produce"\nat_ms = 1000\ncount = 3',
        producers=QUICK + "retries = 0\nmax_in_flight = 1",
    )
    counts = ran.producers("orders")
    assert counts["failed"] == 3
    assert counts["committed"] == counts["records"] - 3


PAUSE = 'kind = "pause"\nbroker = 0\nat_ms = 1000\nduration_ms = 800'


def test_short_pause_delays_requests_and_timeouts(tmp_path: Path) -> None:
    # The follower stalls too, so that something waits in the broker's purgatory while it pauses.
    stall = '[[faults]]\nkind = "stall_follower"\nbroker = 2\nat_ms = 950\nduration_ms = 1500'
    ran = run_with(
        f"{PAUSE}\n{stall}",
        cluster="session_timeout_ms = 2000",
        producers="request_timeout_ms = 2000",
        trace=tmp_path / "trace",
    )
    assert ran.summary["elections"] == 0
    of_broker = [row for row in ran.rows("operations") if row["broker"] == 0]
    assert not [row for row in of_broker if 1_000_000 < row["end_us"] < 1_800_000]
    late = [
        row
        for row in of_broker
        if row["outcome"] == "expired" and row["kind"] == "producer" and row["end_us"] == 1_800_000
    ]
    assert late and all(row["wait_us"] > 800_000 for row in late)
    assert ran.producers("orders")["acknowledged"] == ran.producers("orders")["records"]


def test_broker_paused_beyond_the_session_timeout_loses_leadership() -> None:
    ran = run_with(PAUSE, cluster="session_timeout_ms = 300")
    (elected,) = ran.told("leader_elected")
    assert (elected["leader"], elected["at_ms"]) == (1, 1_300)
    counts = ran.producers("orders")
    assert counts["acknowledged"] == counts["records"] and counts["lost"] == 0


def test_simulation_reports_each_fault_when_it_begins() -> None:
    ran = run_with(STALL + f"\n[[faults]]\n{LOST_ANSWERS}")
    assert ran.summary["faults"] == 2
    assert ran.told("stall_follower") == [{"at_ms": 1_000, "broker": 2, "for_s": 2}]
    assert ran.told("lose_responses") == [
        {"at_ms": 1_000, "count": 3, "api": "produce", "cut": False}
    ]


def test_longest_log_leads_after_all_replicas_lost_records() -> None:
    """Each counts with the log on its disk, though it has been told of no role yet."""
    kill = 'kind = "kill"\nbroker = {}\nat_ms = 1000\nduration_ms = 1000\nlost_records = {}'
    lost = enumerate((9, 1, 5))
    ran = run_with("\n[[faults]]\n".join(kill.format(broker, count) for broker, count in lost))
    assert [fields["leader"] for fields in ran.told("leader_elected")][-1] == 1
