-- The reads in pieces of 60 offsets: one bit of a whole number stands for one offset. A bit is
-- there however often an offset was read, so that counts of bits are counts of distinct offsets; and
-- a poll of 500 records is some ten rows. The constant keeps offsets such as -1 above zero.

-- Records of which all attempts were aborted, and a response is missing: their offsets are unknown,
-- and a consumer may skip them at any place where they were read.
create view unplaced_records as
select run_id, topic, value_id, true as skippable
from records
where unplaced > 0 and oks + unknowns = 0;

-- A row per piece of a partition: the offsets where a transaction was aborted.
create view hidden_offsets as
select run_id, topic, "partition", piece, bit_or(bit) as hidden_bits
from (
    select
        run_id, topic, "partition",
        int_div("offset" + 600000000000000000, 60) as piece,
        cast(1 as bigint) << cast(("offset" + 600000000000000000) % 60 as int) as bit
    from suspect_places
    where hides
) as hidden_places
group by run_id, topic, "partition", piece;

-- A row per read. Its group is the one that brokers know, or else that of the trace. Its reader is a
-- reading, where the trace has readings, or else a consumer; share groups have no order, and so
-- no reader.
create view read_rows as
select
    run_id, coalesce(consumer_group, "group") as "group", "group" as client,
    case when delivery is null then coalesce(-1 - reading, consumer) end as reader,
    consumer, poll, topic, "partition", "offset", value_id, time_us, applied, isolation,
    fetch_offset, restarts, reading, acknowledged = 'accept' as accepted
from reads;

-- A row per read, with its place in its piece.
create view piecewise_reads as
select /*+ broadcast(consumer_settings) */
    run_id, "group", reader, topic, "partition", poll,
    int_div("offset" + 600000000000000000, 60) as piece,
    cast(1 as bigint) << cast(("offset" + 600000000000000000) % 60 as int) as bit,
    skippable,
    accepted,
    case when coalesce(read_rows.isolation, consumer_settings.isolation) = 'read_committed'
        then time_us end as committed_us
from read_rows
left join unplaced_records using (run_id, topic, value_id)
left join consumer_settings using (run_id, "group");

-- A row per poll and piece: the offsets in it, those that no consumer may skip, and when the first was
-- read with read_committed.
create table read_pieces as
select
    run_id, "group", reader, topic, "partition", poll, piece, readings, read_bits,
    shown_bits & ~coalesce(hidden_bits, 0) as shown_bits,
    accepted_bits, committed_us
from (
    select
        run_id, "group", reader, topic, "partition", poll, piece,
        count(*) as readings,
        bit_or(bit) as read_bits,
        bit_or(case when skippable then 0 else bit end) as shown_bits,
        bit_or(case when accepted then bit else 0 end) as accepted_bits,
        min(committed_us) as committed_us
    from piecewise_reads
    group by run_id, "group", reader, topic, "partition", poll, piece
) as pieces_of_polls
left join hidden_offsets using (run_id, topic, "partition", piece);
