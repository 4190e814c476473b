"""The audit once more, in plain Python over lists: slow, and readable beside its definition.

The oracle follows docs/audit.md with loops over all rows, knows nothing of Spark or ranges, and
shares no code with the pipeline.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from tests.spark.pipeline.audit_rows import Found, Read, Send, SmallTrace

Place = tuple[str, int, int]
Record = tuple[str, int]
"""A value within a topic."""
Verdict = tuple[str, str | None]
ABORTS = {"TRANSACTION_ABORTED", "TRANSACTION_ABORTABLE"}


class Oracle:
    """The facts of one run, gathered by loops."""

    def __init__(self, trace: SmallTrace) -> None:
        self.trace = trace
        self.configuration = trace.configuration
        self.ends = {one.transaction: one for one in trace.transactions}
        self.attempts: dict[Record, list[Send]] = defaultdict(list)
        for send in sorted(trace.sends, key=lambda send: send.attempt):
            self.attempts[_record(send)].append(send)
        self.readings: dict[Record, list[Read]] = defaultdict(list)
        for read in trace.reads:
            self.readings[_record(read)].append(read)
        self.reached: dict[tuple[str, int], int] = {}
        self.began: dict[tuple[str, int], int] = {}
        for read in trace.reads:
            partition = (read.topic, read.partition)
            self.reached[partition] = max(self.reached.get(partition, read.offset), read.offset)
            began = read.fetch_offset or 0
            self.began[partition] = min(self.began.get(partition, began), began)
        hidden = {_at(send) for send in trace.sends if self._hidden(send)}
        self.visible = [
            read
            for read in trace.reads
            if _at(read) not in hidden and not self._aborted_somewhere(_record(read))
        ]
        self.known = {
            partition: sorted(
                {read.offset for read in self.visible if (read.topic, read.partition) == partition}
            )
            for partition in self.reached
        }
        self.values = sorted(self.attempts.keys() | self.readings.keys())
        self.places = {value: self._places(value) for value in self.values}
        self.copies = {
            value: self.places[value] | set(self._unread(value)) for value in self.values
        }
        """Every place that is known of a record, also where readers passed and found it not."""

    def found(self) -> Found:
        """All cases, counted."""
        counts: Found = Counter()
        for anomaly, group, verdict, count in self._cases():
            counts[(anomaly, group, *verdict)] += count
        return counts

    def _cases(self) -> Iterator[tuple[str, str | None, Verdict, int]]:
        for case in self._inconsistent_offsets():
            yield *case, 1
        for value in self.values:
            for case in self._of_value(value):
                yield *case, 1
        yield from self._of_sequences()
        for parts in (
            self._writers(),
            self._polls(),
            self._inputs(),
            self._keys(),
            self._partial_transactions(),
            self._stray_commits(),
        ):
            for one in parts:
                yield *one, 1

    def _places(self, value: Record) -> set[Place]:
        held = {
            (read.topic, read.partition, read.offset) for read in self._undone(value, hidden=False)
        }
        for place in self._stored(value, ("ok", "unknown")):
            if place[2] > self.reached.get(place[:2], -1):
                held.add(place)
        return held

    def _unread(self, value: Record) -> list[Place]:
        """The places where it was acknowledged, and not read."""
        read_at = {_at(read) for read in self.readings[value]}
        return [place for place in self._stored(value, ("ok",)) if place not in read_at]

    def _stored(self, value: Record, outcomes: tuple[str, ...]) -> list[Place]:
        return [
            (send.topic, send.partition, send.offset)
            for send in self.attempts[value]
            if self._outcome(send) in outcomes and send.offset is not None
        ]

    # Transactions.

    def _fate(self, transaction: int | None) -> str | None:
        end = None if transaction is None else self.ends.get(transaction)
        return None if end is None else end.outcome

    def _hidden(self, send: Send) -> bool:
        return self._fate(send.transaction) == "aborted" and send.outcome != "fail"

    def _aborted_somewhere(self, value: Record) -> bool:
        """Whether a value was aborted at an unknown place, and may be there alone."""
        attempts = self.attempts.get(value, [])
        return any(self._hidden(send) and send.offset is None for send in attempts) and all(
            self._outcome(send) == "fail" for send in attempts
        )

    def _outcome(self, send: Send) -> str:
        return "fail" if self._hidden(send) else send.outcome

    def _first(self, value: Record) -> Send:
        """The send that identifies the value's producer: of an aborted transaction, if no other."""
        return min(self.attempts[value], key=lambda send: (self._hidden(send), send.attempt))

    def _aborted_all(self, value: Record) -> bool:
        return all(
            send.error in ABORTS or self._fate(send.transaction) == "aborted"
            for send in self.attempts[value]
        )

    def _undone(self, value: Record, hidden: bool = True) -> list[Read]:
        """The readings of a value where a transaction with it was aborted, or elsewhere."""
        places = {_at(send) for send in self.attempts[value] if self._hidden(send)}
        return [read for read in self.readings[value] if (_at(read) in places) == hidden]

    def _late(self, send: Send) -> bool:
        end = None if send.transaction is None else self.ends.get(send.transaction)
        if end is not None and end.ended_us is not None and send.send_us > end.ended_us:
            return True
        if send.transactional_id is None or send.epoch is None:
            return False
        return any(
            other.transactional_id == send.transactional_id
            and other.epoch > send.epoch
            and send.send_us > (other.begun_us if other.epoch_us is None else other.epoch_us)
            for other in self.trace.transactions
        )

    def _counts(self, transaction: int | None) -> bool:
        return self._fate(transaction) in (None, "committed")

    def _isolation(self, read: Read) -> Any:
        return read.isolation or getattr(self._consumers(read.group), "isolation", None)

    def _partial_transactions(self) -> Iterator[tuple[str, str | None, Verdict]]:
        for group in sorted({read.group for read in self.trace.reads}):
            mine = [read for read in self.trace.reads if read.group == group]
            ends: dict[tuple[str, int], int] = {}
            for read in mine:
                partition = (read.topic, read.partition)
                ends[partition] = max(ends.get(partition, 0), read.offset)
            for number, end in self.ends.items():
                if end.outcome == "aborted":
                    continue
                written = {
                    _at(send)
                    for send in self.trace.sends
                    if send.transaction == number
                    and send.outcome == "ok"
                    and send.offset is not None
                    and send.offset <= ends.get((send.topic, send.partition), -1)
                }
                seen = [read for read in mine if _at(read) in written]
                levels = {self._isolation(read) for read in seen}
                early = [
                    read
                    for read in seen
                    if self._isolation(read) == "read_committed"
                    and (
                        end.outcome == "open"
                        or (end.decided_us is not None and read.time_us < end.decided_us)
                    )
                ]
                split = 0 < len({_at(read) for read in seen}) < len(written)
                if not early and (end.outcome == "open" or not split):
                    continue
                verdict: Verdict
                if "read_committed" in levels:
                    verdict = self._absent(("violation", "isolation=read_committed"))
                elif None in levels:
                    verdict = "indeterminate", "configuration unknown: isolation"
                else:
                    verdict = "permitted", "isolation=read_uncommitted"
                yield "partial_transaction", group, verdict

    def _stray_commits(self) -> Iterator[tuple[str, str | None, Verdict]]:
        recorded = {effect.group for effect in self.trace.effects}
        for commit in self.trace.commits:
            fate = self._fate(commit.transaction)
            if commit.group in recorded or fate is None or commit.held is None:
                continue
            if commit.held != (fate == "committed"):
                name = "offset_without_result" if commit.held else "result_without_offset"
                if commit.held or fate == "committed":
                    yield name, commit.group, self._absent(("violation", None))

    # Verdicts.

    def _producers(self, group: str | None) -> Any:
        return next((one for one in self.configuration.producers if one.group == group), None)

    def _consumers(self, group: str | None) -> Any:
        return next((one for one in self.configuration.consumers if one.group == group), None)

    def _setting(self, group: str | None, name: str) -> Any:
        return getattr(self._producers(group), name, None)

    def _absent(self, otherwise: Verdict) -> Verdict:
        """The verdict on a case that is found because something is not in the trace."""
        if otherwise[0] != "permitted" and not self.configuration.complete:
            return "indeterminate", "incomplete run"
        return otherwise

    def _assignment(self, group: str) -> Verdict:
        assignment = getattr(self._consumers(group), "assignment", None)
        if assignment is None:
            return "indeterminate", "configuration unknown: assignment"
        verdict = "permitted" if assignment == "subscribe" else "violation"
        return verdict, f"assignment={assignment}"

    def _reordered(self, group: str | None) -> Verdict:
        idempotence = self._setting(group, "idempotence")
        in_flight = self._setting(group, "max_in_flight")
        if idempotence:
            return "violation", "idempotence=true"
        if in_flight == 1:
            return "violation", "max_in_flight=1"
        if self._setting(group, "retries") == 0:
            return "violation", "retries=0"
        unknown = [
            name
            for name, value in (("idempotence", idempotence), ("max_in_flight", in_flight))
            if value is None
        ]
        if unknown:
            return "indeterminate", "configuration unknown: " + ", ".join(unknown)
        return "permitted", f"idempotence=false with max_in_flight={in_flight}"

    def _resent(self, group: str | None) -> Verdict:
        idempotence = self._setting(group, "idempotence")
        if idempotence:
            return "violation", "idempotence=true"
        if self._setting(group, "retries") == 0:
            return "violation", "retries=0"
        if idempotence is None:
            return "indeterminate", "configuration unknown: idempotence"
        return "permitted", "idempotence=false"

    # Anomalies.

    def _inconsistent_offsets(self) -> Iterator[tuple[str, str | None, Verdict]]:
        said: dict[Place, set[Record]] = defaultdict(set)
        firm: dict[Place, set[Record]] = defaultdict(set)
        for value in self.values:
            for read in self.readings[value]:
                place = (read.topic, read.partition, read.offset)
                said[place].add(value)
                firm[place].add(value)
            for send in self.attempts[value]:
                if send.outcome == "ok" and send.offset is not None:
                    place = (send.topic, send.partition, send.offset)
                    said[place].add(value)
                    if send.acks == -1:
                        firm[place].add(value)
        for place, values in said.items():
            if len(values) > 1:
                agree = len(firm[place]) < 2
                yield (
                    "inconsistent_offset",
                    None,
                    ("permitted", "acks=1") if agree else ("violation", None),
                )

    def _of_value(self, value: Record) -> Iterator[tuple[str, str | None, Verdict]]:
        attempts, readings, places = (
            self.attempts[value],
            self.readings[value],
            self.copies[value],
        )
        group = self._first(value).group if attempts else None
        oks = [send for send in attempts if self._outcome(send) == "ok"]
        unknowns = [send for send in attempts if self._outcome(send) == "unknown"]
        lost_ack = any(
            earlier.attempt < later.attempt for earlier in unknowns for later in attempts
        )
        if len(places) > 1:
            verdict: Verdict
            if not attempts:
                verdict = "indeterminate", "its sends are not in the trace"
            elif lost_ack and len(places) <= len(oks) + len(unknowns):
                verdict = self._resent(group)
            else:
                verdict = "violation", None
            unplaced = any(self._hidden(send) and send.offset is None for send in attempts)
            if unplaced and verdict[0] != "permitted":
                verdict = "indeterminate", "a copy, perhaps of an aborted transaction"
            yield "duplicate", group, verdict
            if lost_ack:
                yield "lost_ack_duplicate", group, verdict
        unread = self._unread(value)
        waiting = [place for place in unread if place[2] > self.reached.get(place[:2], -1)]
        if oks:
            acks = self._first(value).acks
            weak = acks in (0, 1)
            missed = [place for place in unread if place not in waiting]
            if weak:
                verdict = "permitted", f"acks={acks}"
            elif missed and all(place[2] < self.began[place[:2]] for place in missed):
                verdict = "indeterminate", "every reader began behind it"
            else:
                verdict = self._absent(("violation", "acks=all"))
            if len(waiting) < len(unread) and self.places[value]:
                yield "moved_write", group, verdict
            if self._undone(value, hidden=False):
                pass
            elif unread and not waiting:
                yield "lost_write", group, verdict
            else:
                lost_answer = any(send.offset is None for send in unknowns)
                yield "unseen", group, ("indeterminate", self._why_unseen(waiting, lost_answer))
        failed = bool(attempts) and all(self._outcome(send) == "fail" for send in attempts)
        undone = readings if failed else self._undone(value)
        if undone:
            yield "aborted_read", group, self._aborted(attempts, undone)
        late = [send.outcome for send in attempts if self._late(send)]
        timely = any(not self._late(send) and send.outcome != "fail" for send in attempts)
        if "ok" in late or ("unknown" in late and readings and not timely):
            yield "zombie_write", group, ("violation", None)
        if self._failed(value):
            errors = [(send.attempt, send.error) for send in attempts if send.error is not None]
            yield "failed_send", group, ("permitted", max(errors)[1] if errors else "no response")

    def _failed(self, value: Record) -> bool:
        """Whether a producer knows that a record may not be stored, and it isn't."""
        attempts = self.attempts[value]
        if not attempts or self.readings[value] or self.places[value]:
            return False
        last = max(attempts, key=lambda send: send.attempt)
        lasts = [send for send in attempts if send.attempt == last.attempt]
        is_open = any(send.outcome == "unknown" and send.answer_us is None for send in lasts)
        return (
            self._first(value).acks != 0
            and not is_open
            and all(send.outcome != "ok" for send in attempts)
            and not any(self._hidden(send) or send.error in ABORTS for send in attempts)
            and not any(self._fate(send.transaction) == "aborted" for send in attempts)
        )

    def _why_unseen(self, waiting: list[Place], lost_answer: bool) -> str:
        if not waiting:
            return "its offset is not known"
        if all(place[:2] in self.reached for place in waiting):
            return "readers did not get there"
        return "nobody read its partition" + (", and an answer was lost" if lost_answer else "")

    def _aborted(self, attempts: list[Send], readings: list[Read]) -> Verdict:
        if not any(self._hidden(send) or send.error in ABORTS for send in attempts):
            return self._absent(("violation", None))
        levels = {self._isolation(read) for read in readings}
        if levels == {"read_uncommitted"}:
            return "permitted", "isolation=read_uncommitted"
        if "read_committed" in levels:
            return self._absent(("violation", "isolation=read_committed"))
        return "indeterminate", "configuration unknown: isolation"

    def _of_sequences(self) -> Iterator[tuple[str, str | None, Verdict, int]]:
        # Numbers may start again, so that one number is that of several values.
        by_producer: dict[int, list[tuple[int, Record]]] = defaultdict(list)
        for value, attempts in self.attempts.items():
            if attempts:
                first = self._first(value)
                by_producer[first.producer].append((first.sequence, value))
        for sent in by_producer.values():
            yield from self._order(sent)
            yield from self._gaps(sent)

    def _order(
        self, sent: list[tuple[int, Record]]
    ) -> Iterator[tuple[str, str | None, Verdict, int]]:
        for one, value in sent:
            attempts = self.attempts[value]
            for partition in {place[:2] for place in self.places[value]}:
                first = min(place for place in self.places[value] if place[:2] == partition)
                behind = any(
                    place[:2] == partition and place < first
                    for later, other in sent
                    if later > one
                    for place in self.places[other]
                )
                if behind and (len(attempts) > 1 or attempts[-1].attempt > 1):
                    verdict = self._reordered(self._first(value).group)
                    yield "retry_reorder", self._first(value).group, verdict, 1
                elif behind:
                    yield "nonmonotonic_send", self._first(value).group, ("violation", None), 1

    def _gaps(
        self, sent: list[tuple[int, Record]]
    ) -> Iterator[tuple[str, str | None, Verdict, int]]:
        stored = [sequence for sequence, value in sent if self.places[value]]
        if not stored:
            return
        for sequence in range(min(stored) + 1, max(stored)):
            if sequence in stored:
                continue
            values = [value for one, value in sent if one == sequence]
            if not values:
                after = self._first(
                    min((one for one in sent if one[0] > sequence), key=_in_order)[1]
                )
                before = self._first(
                    max((one for one in sent if one[0] < sequence), key=_in_order)[1]
                )
                verdict: Verdict = "violation", None
                if after.acks == 0:
                    verdict = "permitted", "acks=0"
                elif self._aborted_all(_record(before)) or self._aborted_all(_record(after)):
                    yield (
                        "sequence_gap",
                        after.group,
                        ("indeterminate", "perhaps of an aborted transaction"),
                        1,
                    )
                    continue
                yield "sequence_gap", after.group, self._absent(verdict), 1
            for value in values:
                first = self._first(value)
                is_acked = any(self._outcome(send) == "ok" for send in self.attempts[value])
                if not self._aborted_all(value) and (is_acked or first.acks == 0):
                    yield "sequence_gap", first.group, self._gap_verdict(first.acks), 1

    def _gap_verdict(self, acks: int) -> Verdict:
        if acks == 0:
            return "permitted", "acks=0"
        return self._absent(("permitted", "acks=1") if acks == 1 else ("violation", "acks=all"))

    def _writers(self) -> Iterator[tuple[str, str | None, Verdict]]:
        spans: dict[tuple[str, int], dict[tuple[int, str], list[int]]] = defaultdict(dict)
        for send in self.trace.sends:
            if send.outcome != "fail":
                ends = spans[(send.topic, send.partition)].setdefault(
                    (send.producer, send.group), []
                )
                ends += [send.send_us] + ([] if send.answer_us is None else [send.answer_us])
        starts: dict[tuple[int, str], int] = {}
        for partition, writers in spans.items():
            starts = {
                writer: min(
                    send.send_us
                    for send in self.trace.sends
                    if (send.topic, send.partition) == partition
                    and (send.producer, send.group) == writer
                    and send.outcome != "fail"
                )
                for writer in writers
            }
            order = sorted(writers, key=lambda writer: (starts[writer], writer[0]))
            for index, writer in enumerate(order[1:], 1):
                longest = max(order[:index], key=lambda other: (max(writers[other]), other[0]))
                if starts[writer] < max(writers[longest]):
                    yield "multi_writer", writer[1], self._single(writer[1], longest[1])

    def _single(self, *groups: str) -> Verdict:
        asked = [self._setting(group, "single_writer") for group in groups]
        if True in asked:
            return "violation", "single_writer=true"
        if None in asked:
            return "indeterminate", "configuration unknown: single_writer"
        return "permitted", "single_writer=false"

    def _polls(self) -> Iterator[tuple[str, str | None, Verdict]]:
        polls: dict[Any, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        for read in self.visible:
            reader = (read.group, read.consumer, read.topic, read.partition)
            polls[reader][read.poll].add(read.offset)
        for (group, _, topic, partition), by_poll in polls.items():
            known = self.known[(topic, partition)]
            end = None
            for _, offsets in sorted(by_poll.items()):
                first, last = min(offsets), max(offsets)
                if any(first < offset < last and offset not in offsets for offset in known):
                    yield "poll_skip", group, self._absent(("violation", None))
                if end is not None and first <= end:
                    yield "nonmonotonic_poll", group, self._assignment(group)
                if end is not None and any(end < offset < first for offset in known):
                    yield "poll_skip", group, self._absent(self._assignment(group))
                end = last

    def _inputs(self) -> Iterator[tuple[str, str | None, Verdict]]:
        trace = self.trace
        recorded = {effect.group for effect in trace.effects}
        delivered: Counter[Any] = Counter()
        applied: Counter[Any] = Counter()
        values: dict[Any, int] = {}
        for read in trace.reads:
            place = (read.group, read.topic, read.partition, read.offset)
            delivered[place] += 1
            values[place] = min(values.get(place, read.value_id), read.value_id)
            if read.group not in recorded:
                applied[place] += read.applied
        written_in: dict[Any, set[int]] = defaultdict(set)
        for effect in trace.effects:
            if self._counts(effect.transaction):
                place = (effect.group, effect.topic, effect.partition, effect.offset)
                applied[place] += 1
                if effect.transaction is not None:
                    written_in[place].add(effect.transaction)
        committed: dict[Any, int] = {}
        for commit in trace.commits:
            if commit.held if commit.held is not None else self._counts(commit.transaction):
                for store in (
                    (commit.group, commit.topic, commit.partition),
                    (commit.group, commit.topic, commit.partition, commit.transaction),
                ):
                    committed[store] = max(committed.get(store, commit.offset), commit.offset)
        committing = {commit.group for commit in trace.commits}
        for place in delivered.keys() | applied.keys():
            group = place[0]
            if delivered[place] > 1 and applied[place] == 1:
                yield "reprocess", group, self._absent(self._assignment(group))
            if applied[place] > 1:
                yield "effect_duplicate", group, ("violation", None)
            if group not in recorded or group not in committing:
                continue
            covered = place[:3] in committed and place[3] < committed[place[:3]]
            if covered and delivered[place] and not applied[place]:
                copied = len(self.copies[(place[1], values[place])]) > 1
                doubt: Verdict = ("indeterminate", "a copy, perhaps dropped as such")
                verdict = doubt if copied else self._absent(("violation", None))
                yield "offset_without_result", group, verdict
            # Of several transactions the first one counts: in a trace they are numbered in order.
            first = min(written_in[place], default=None)
            with_it = first is None or committed.get((*place[:3], first), -1) > place[3]
            if applied[place] and not (covered and with_it):
                yield "result_without_offset", group, self._absent(("violation", None))

    def _keys(self) -> Iterator[tuple[str, str | None, Verdict]]:
        by_key: dict[Any, list[Any]] = defaultdict(list)
        order = sorted(
            (effect for effect in self.trace.effects if self._counts(effect.transaction)),
            key=lambda one: (one.time_us, one.partition, one.offset, one.version),
        )
        for effect in order:
            by_key[(effect.group, effect.topic, effect.key)].append(effect)
        for (group, topic, _), effects in by_key.items():
            for index, effect in enumerate(effects):
                highest = max(
                    effects[:index],
                    key=lambda other: (other.version, other.partition, other.offset),
                    default=effect,
                )
                if highest.version <= effect.version:
                    continue
                in_log = highest.partition == effect.partition and effect.offset > highest.offset
                verdict: Verdict = ("violation", None)
                if in_log:
                    verdict = self._reordered(self._sender(topic, effect.partition, effect.offset))
                yield "key_order_violation", group, verdict

    def _sender(self, topic: str, partition: int, offset: int) -> str | None:
        held = [
            read.value_id
            for read in self.trace.reads
            if (read.topic, read.partition, read.offset) == (topic, partition, offset)
        ]
        sender = (topic, min(held)) if held else None
        return self._first(sender).group if sender and self.attempts[sender] else None


def _record(row: Send | Read) -> Record:
    return row.topic, row.value_id


def _in_order(sent: tuple[int, Record]) -> tuple[int, int, str]:
    sequence, (topic, value) = sent
    return sequence, value, topic


def _at(row: Send | Read) -> tuple[str, int, int | None]:
    return row.topic, row.partition, row.offset
