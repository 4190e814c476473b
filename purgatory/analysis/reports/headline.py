"""What happened in a run, and why, in a few sentences: how its part of the report opens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from purgatory.analysis.reports.report_results import Results
from purgatory.analysis.result_rows import Row

_VERDICTS = ("violation", "indeterminate", "permitted")
_FOUND: Mapping[str, str] = {
    "inconsistent_offset": "at {n} offsets readers found different values",
    "duplicate": "{n} records are stored more than once",
    "lost_ack_duplicate": "the answer to an earlier attempt at {n} of them got lost",
    "lost_write": "{n} acknowledged records are lost",
    "unseen": "{n} acknowledged records lie above what readers reached",
    "aborted_read": "{n} records were read though their sends failed",
    "retry_reorder": "{n} records that were sent again lie behind later ones",
    "nonmonotonic_send": "{n} records lie behind later ones, though they were sent once",
    "sequence_gap": "{n} records are missing between stored ones",
    "multi_writer": "{n} times a producer wrote to a partition in which another was not done",
    "poll_skip": "{n} polls jumped over records",
    "nonmonotonic_poll": "{n} polls went back",
    "key_order_violation": "{n} older versions of a key were applied after newer ones",
    "reprocess": "{n} inputs were delivered again, and applied once",
    "effect_duplicate": "{n} inputs were applied more than once",
    "offset_without_result": "{n} committed inputs have no result",
    "result_without_offset": "{n} results are stored whose offset is not committed",
}


def headline(results: Results) -> str:
    """What happened in one run, and why, as plain text.

    Args:
        results: its rows, and no other run's.
    """
    (run,) = results.runs
    said = [*_faults(run), *_expired(results.waits), *_answers(results.latencies)]
    return " ".join([*said, *_audited(results.audit)])


def fault_in_words(fault: Row) -> str:
    """A fault: what, of whom, from when until when."""
    of_broker = "" if fault["broker"] is None else f" of broker {fault['broker']}"
    text = f"{fault['kind']}{of_broker} from {fault['at_ms'] / 1000:,.3f} s"
    if fault["duration_ms"] is not None:
        text += f" to {(fault['at_ms'] + fault['duration_ms']) / 1000:,.3f} s"
    return text


def _faults(run: Row) -> Iterator[str]:
    faults = run["faults"]
    if not faults:
        return
    more = f", and {len(faults) - 1:,} more" if len(faults) > 1 else ""
    yield f"There was a fault: {fault_in_words(faults[0])}{more}."


def _expired(waits: Sequence[Row]) -> Iterator[str]:
    """How many requests of producers expired: those of fetches do when nothing comes."""
    counts = {
        row["outcome"]: row["operations"]
        for row in waits
        if row["purgatory"] == "Produce" and row["kind"] == "all"
    }
    of, expired = counts.get("all", 0), counts.get("expired", 0)
    if expired:
        yield f"{expired:,} of {of:,} produces ({100 * expired / of:.1f} %) expired."
    elif of:
        yield f"None of {of:,} produces expired."


def _answers(latencies: Sequence[Row]) -> Iterator[str]:
    slowest = max(
        (row for row in latencies if row["span"] == "attempt"),
        key=lambda row: row["latency_p99_us"],
        default=None,
    )
    if slowest is not None:
        yield (
            f"Producers of {slowest['group']} got an answer after "
            f"{slowest['latency_mean_us'] / 1000:,.1f} ms on average, and one of 100 after more "
            f"than {slowest['latency_p99_us'] / 1000:,.0f} ms."
        )


def _audited(audit: Sequence[Row]) -> Iterator[str]:
    """A sentence for each verdict that there is, the worst first."""
    if not audit:
        return
    for verdict in _VERDICTS:
        rows = [row for row in audit if row["verdict"] == verdict and row["count"]]
        counts: dict[str, int] = {}
        for row in rows:
            counts[row["anomaly"]] = counts.get(row["anomaly"], 0) + row["count"]
        if counts:
            found = [
                _FOUND.get(name, f"{name}: {{n}}").format(n=f"{n:,}") for name, n in counts.items()
            ]
            settings = "; ".join(dict.fromkeys(filter(None, (row["setting"] for row in rows))))
            sentence = f"{_listed(found)}{_judged(verdict, settings)}."
            yield sentence[0].upper() + sentence[1:]
    if not any(row["count"] for row in audit):
        yield "Nothing was lost, doubled or out of order."


def _judged(verdict: str, settings: str) -> str:
    if verdict == "violation":
        return f", which breaks what was promised{f' ({settings})' if settings else ''}"
    if verdict == "permitted":
        return f", which the settings permit ({settings})" if settings else ", which is permitted"
    return f"; whether that breaks a promise, nobody can tell{f' ({settings})' if settings else ''}"


def _listed(found: Sequence[str]) -> str:
    *first, last = found
    return f"{', '.join(first)}, and {last}" if first else last
