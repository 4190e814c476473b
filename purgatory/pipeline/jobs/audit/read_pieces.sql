-- What was read, in pieces of 60 offsets: one bit of a whole number stands for one offset. A bit is
-- there however often an offset was read, so that counts of bits are counts of distinct offsets; and
-- a poll of 500 records is some ten rows. The constant keeps offsets such as -1 above zero.

-- Records of which all attempts were aborted, and an answer is missing: nobody knows where they lie,
-- and wherever they were read, a consumer may skip them.
create table unplaced_records as
select run_id, topic, value_id, true as skippable
from records
where unplaced > 0 and oks + unknowns = 0;

-- A row per piece of a partition: the offsets where a transaction was aborted.
create view hidden_offsets as
select run_id, topic, "partition", piece, bit_or(cast(1 as bigint) << place) as hidden_bits
from (
    select run_id, topic, "partition", int_div("offset" + 600000000000000000, 60) as piece,
        cast(("offset" + 600000000000000000) % 60 as int) as place
    from resolved_sends
    where hidden and "offset" is not null
) hidden_places
group by run_id, topic, "partition", piece;

-- A row per read, with its place in its piece.
create view piecewise_reads as
select r.run_id, r."group", r.consumer, r.topic, r."partition", r.poll,
    int_div(r."offset" + 600000000000000000, 60) as piece,
    cast(1 as bigint) << cast((r."offset" + 600000000000000000) % 60 as int) as bit,
    u.skippable
from reads r left join unplaced_records u
    on r.run_id = u.run_id and r.topic = u.topic and r.value_id = u.value_id;

-- A row per poll and piece: the offsets in it, and those that no consumer may skip.
create table read_pieces as
select p.run_id, p."group", p.consumer, p.topic, p."partition", p.poll, p.piece, p.readings,
    p.read_bits, p.shown_bits & ~coalesce(h.hidden_bits, 0) as shown_bits
from (
    select run_id, "group", consumer, topic, "partition", poll, piece,
        count(*) as readings,
        bit_or(bit) as read_bits,
        bit_or(case when skippable then 0 else bit end) as shown_bits
    from piecewise_reads
    group by run_id, "group", consumer, topic, "partition", poll, piece
) p left join hidden_offsets h
    on p.run_id = h.run_id and p.topic = h.topic and p."partition" = h."partition"
    and p.piece = h.piece;
