-- The attempts, acknowledgements and places (partition and offset) of each record.
--
-- A record is a value within its topic: its copy in another topic is another record. Most were sent
-- once, and read where they were acknowledged: one aggregation of few columns separates the
-- `suspects` from them, and all else is about those.

-- A row per record that was sent or read. No suspect is one that was sent once, with an acknowledged
-- offset, neither aborted nor late, and read there and nowhere else; nor one never sent, but read
-- at one place: of these, `partition` and `offset` are that place. A send that may make its record a
-- suspect has the offset -1 here.
create table traced_records as
select
    run_id, topic, value_id,
    min("partition") as "partition",
    min("offset") as "offset",
    min(producer) as producer,
    min(sequence) as sequence,
    min("partition") <> max("partition")
        or min("offset") <> max("offset")
        or min("offset") < 0
        or count(producer) > 1
        or (count(producer) = 1 and count(*) = 1) as suspect
from (
    select
        run_id, topic, value_id, "partition",
        case when outcome = 'ok' and not aborted and not late then coalesce("offset", -1) else -1
        end as "offset",
        producer, sequence
    from resolved_sends
    union all
    select run_id, topic, value_id, "partition", "offset", null, null from reads
) as observations
group by run_id, topic, value_id;

create table suspects as
select run_id, topic, value_id from traced_records where suspect;

-- A row per record that was sent, and is no suspect.
create view plain_records as
select run_id, topic, value_id, "partition", "offset", producer, sequence
from traced_records
where not suspect and producer is not null;

-- A row per key of a compacted partition: the last offset of its records. Compaction may take all
-- before it.
create view key_ends as
select run_id, topic, "partition", "key", max("offset") as key_end
from resolved_sends
where compaction is not null and outcome = 'ok' and not hidden and "offset" is not null
group by run_id, topic, "partition", "key";

-- A row per attempt to send a suspect; the first is number 1. A record that was sent again in
-- another transaction counts as it was sent there.
create table suspect_sends as
select
    run_id, topic, value_id, "group", producer, sequence, "key", acks, "partition", "offset",
    attempt, outcome, error, send_us, answer_us, transaction, aborted, hidden, late,
    coalesce(compaction = 'tombstone' or "offset" < key_end, false) as takeable,
    max(case when error is not null then attempt end) over (
        partition by run_id, topic, value_id
    ) as error_attempt,
    row_number() over (
        partition by run_id, topic, value_id
        order by hidden, attempt, "group", producer, sequence, "key", acks, "partition"
    ) as number
from resolved_sends
semi join suspects using (run_id, topic, value_id)
left join key_ends using (run_id, topic, "partition", "key");

-- A row per suspect that was sent. `open` is its last attempt, if no response came.
create view suspect_attempts as
select
    run_id, topic, value_id,
    max(case when number = 1 then "group" end) as "group",
    max(case when number = 1 then producer end) as producer,
    max(case when number = 1 then sequence end) as sequence,
    max(case when number = 1 then "key" end) as "key",
    max(case when number = 1 then acks end) as acks,
    max(case when number = 1 then "partition" end) as "partition",
    count(*) as attempts,
    count(*) filter (where outcome = 'ok' and not hidden) as oks,
    count(*) filter (where outcome = 'unknown' and not hidden) as unknowns,
    count(*) filter (where outcome = 'fail' or hidden) as fails,
    count(*) filter (where aborted) as aborts,
    count(*) filter (where hidden or error in :abort_errors) as hiddens,
    count(*) filter (where hidden and "offset" is null) as unplaced,
    count(*) filter (where outcome = 'unknown' and not hidden and "offset" is null)
        as unplaced_unknowns,
    count(*) filter (where late and outcome = 'ok') as late_oks,
    count(*) filter (where late and outcome = 'unknown') as late_unknowns,
    count(*) filter (where not late and outcome <> 'fail') as timely,
    count(*) filter (where attempt = 1 and outcome <> 'fail' and not hidden) as first_attempts,
    max(case when attempt = error_attempt then error end) as last_error,
    min(case when outcome = 'unknown' and not hidden and coalesce(error, '') <> 'sent again'
        then attempt end) < max(attempt) as surely_lost_ack,
    max(case when hidden or late then transaction end) as transaction,
    max(attempt) as last_attempt,
    min(case when outcome = 'unknown' and not hidden then attempt end) < max(attempt) as lost_ack,
    max(2 * cast(attempt as bigint) + case
        when outcome = 'unknown' and not hidden and answer_us is null and acks <> 0 then 1 else 0
    end) % 2 = 1 as open,
    min(send_us) as send_us
from suspect_sends
group by run_id, topic, value_id;

-- A row per partition that was read: how far, and from where on.
create view read_partitions as
select
    run_id, topic, "partition",
    max("offset") as reached,
    min(coalesce(fetch_offset, 0)) as began
from reads
group by run_id, topic, "partition";

-- A row per suspect and place in a send or a read. `told`: a broker may have stored it
-- there; `hides`: in a transaction that was aborted.
create table suspect_places as
select
    run_id, topic, value_id, "partition", "offset",
    bool_or(acked) as acked,
    bool_or(told) as told,
    bool_or(hides) as hides,
    bool_or(takeable) as takeable,
    count(isolation) as readings,
    count(*) filter (where isolation = 'read_committed') as committed_readings,
    count(*) filter (where isolation = 'unknown') as unknown_readings,
    min(read_us) as read_us
from (
    select
        run_id, topic, value_id, "partition", "offset",
        outcome = 'ok' and not hidden as acked,
        not hidden as told,
        hidden as hides,
        takeable,
        cast(null as string) as isolation,
        cast(null as bigint) as read_us
    from suspect_sends
    where outcome <> 'fail' and "offset" is not null
    union all
    select /*+ broadcast(consumer_settings) */
        run_id, topic, value_id, "partition", "offset",
        false as acked,
        false as told,
        false as hides,
        false as takeable,
        coalesce(reads.isolation, consumer_settings.isolation, 'unknown') as isolation,
        time_us as read_us
    from reads
    semi join suspects using (run_id, topic, value_id)
    left join consumer_settings using (run_id, "group")
) as observations
group by run_id, topic, value_id, "partition", "offset";

-- A row per suspect and partition in a send or a read. A place holds a copy if the record was read
-- there, or if a broker stored it there and it lies above all that was read in the partition: it is
-- `waiting` there. An acknowledged place below that, where the record was not read, is `missed`,
-- unless compaction may have taken it: then it is `taken`, and counts as held. A missed place is
-- `passed` unless all readers of the partition began behind it. Places where a transaction was
-- aborted hold nothing.
create table suspect_partitions as
select /*+ broadcast(read_partitions) */
    run_id, topic, value_id, "partition",
    min(case when holds then "offset" end) as first_offset,
    count(*) filter (where holds) as copies,
    count(*) filter (where misses) as misses,
    min(case when misses then "offset" end) as missed_offset,
    bool_or(misses and "offset" >= began) as passed,
    bool_or(taken) as taken,
    min(case when acked and unread and above then "offset" end) as waiting_offset,
    bool_or(acked and unread and reached is null) as unvisited,
    min(case when hides and not unread then "offset" end) as hidden_offset,
    sum(readings) as readings,
    sum(committed_readings) as committed_readings,
    sum(unknown_readings) as unknown_readings,
    sum(case when hides then readings end) as hidden_readings,
    sum(case when hides then committed_readings end) as hidden_committed_readings,
    sum(case when hides then unknown_readings end) as hidden_unknown_readings,
    min(read_us) as read_us
from (
    select
        run_id, topic, value_id, "partition", "offset", acked, hides, began, reached, unread, above,
        acked and unread and not above and not takeable as misses,
        acked and unread and not above and takeable as taken,
        case when unread then told and (above or takeable) else not hides end as holds,
        readings, committed_readings, unknown_readings, read_us
    from (
        select
            suspect_places.*,
            began,
            reached,
            readings = 0 as unread,
            coalesce("offset" > reached, true) as above
        from suspect_places
        left join read_partitions using (run_id, topic, "partition")
    ) as places
) as judged_places
group by run_id, topic, value_id, "partition";

-- A row per suspect and partition that holds it.
create view stored_places as
select run_id, topic, value_id, "partition", first_offset, copies
from suspect_partitions
where copies > 0;

-- A row per suspect: its first attempt, counts of attempts and of readings, and its places. The
-- first of those are in the partition with the lowest number.
create table records as
select
    run_id, topic, value_id, "group", producer, sequence, "key", acks,
    suspect_attempts."partition",
    coalesce(attempts, 0) as attempts,
    coalesce(oks, 0) as oks,
    coalesce(unknowns, 0) as unknowns,
    coalesce(fails, 0) as fails,
    coalesce(aborts, 0) as aborts,
    coalesce(hiddens, 0) as hiddens,
    coalesce(unplaced, 0) as unplaced,
    coalesce(unplaced_unknowns, 0) as unplaced_unknowns,
    coalesce(late_oks, 0) as late_oks,
    coalesce(late_unknowns, 0) as late_unknowns,
    coalesce(timely, 0) as timely,
    coalesce(readings, 0) as readings,
    coalesce(committed_readings, 0) as committed_readings,
    coalesce(unknown_readings, 0) as unknown_readings,
    coalesce(hidden_readings, 0) as hidden_readings,
    coalesce(hidden_committed_readings, 0) as hidden_committed_readings,
    coalesce(hidden_unknown_readings, 0) as hidden_unknown_readings,
    coalesce(first_attempts, 0) as first_attempts,
    transaction, last_attempt, last_error, lost_ack, surely_lost_ack, open, send_us, read_us,
    coalesce(places, 0) as places,
    missed_partition, missed_offset, coalesce(passed, false) as passed,
    waiting_partition, waiting_offset, coalesce(unvisited, false) as unvisited,
    hidden_offset, stored_partition, stored_offset, coalesce(taken, false) as taken,
    coalesce(observed, false) as observed
from suspects
left join audited_runs using (run_id)
left join suspect_attempts using (run_id, topic, value_id)
left join (
    select
        run_id, topic, value_id,
        cast(sum(readings) as bigint) as readings,
        cast(sum(committed_readings) as bigint) as committed_readings,
        cast(sum(unknown_readings) as bigint) as unknown_readings,
        cast(sum(hidden_readings) as bigint) as hidden_readings,
        cast(sum(hidden_committed_readings) as bigint) as hidden_committed_readings,
        cast(sum(hidden_unknown_readings) as bigint) as hidden_unknown_readings,
        min(read_us) as read_us,
        cast(sum(copies + misses) as bigint) as places,
        min(case when misses > 0 then "partition" end) as missed_partition,
        min_by(missed_offset, "partition") filter (where misses > 0) as missed_offset,
        bool_or(passed) as passed,
        min(case when waiting_offset is not null then "partition" end) as waiting_partition,
        min_by(waiting_offset, "partition") filter (where waiting_offset is not null)
            as waiting_offset,
        bool_or(unvisited) as unvisited,
        min(hidden_offset) as hidden_offset,
        bool_or(taken) as taken,
        min(case when copies > 0 then "partition" end) as stored_partition,
        min_by(first_offset, "partition") filter (where copies > 0) as stored_offset
    from suspect_partitions
    group by run_id, topic, value_id
) as placed using (run_id, topic, value_id);
