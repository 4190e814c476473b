-- Order within a producer: records that lie behind later ones, and numbers that are missing.
--
-- Numbers may begin anew under one producer: records of one number have no order among them, and a
-- number is missing only if none of them is stored. Windows see a slice of a producer's numbers, and
-- one row for what the later slices hold; or numbers as sets of bits (`read_pieces`).

-- A row per suspect that was sent and partition that holds it; one without an offset if none does.
create table numbered_suspects as
select
    records.run_id, records.producer, records.sequence, records.topic, records.value_id,
    stored_places."partition", stored_places.first_offset, aborts = attempts as aborted
from records
left join stored_places
    on records.run_id = stored_places.run_id and records.topic = stored_places.topic
    and records.value_id = stored_places.value_id
where attempts > 0
union all
-- Under another number than the record's: a transaction was aborted, and the record sent again.
select
    run_id, suspect_sends.producer, suspect_sends.sequence, topic, value_id, null, null,
    suspect_sends.aborted
from suspect_sends
join records using (run_id, topic, value_id)
where suspect_sends.producer <> records.producer or suspect_sends.sequence <> records.sequence;

-- The same of all records.
create view numbered_records as
select run_id, producer, sequence, topic, value_id, "partition", first_offset, aborted
from numbered_suspects
union all
select run_id, producer, sequence, topic, value_id, "partition", "offset", false from plain_records;

-- A row per slice of a producer's numbers and partition: the first offset of the later slices.
create view later_slices as
select run_id, producer, topic, "partition", slice, least_later
from (
    select run_id, producer, topic, "partition", slice, min(least_offset) over (
        partition by run_id, producer, topic, "partition" order by slice desc
        rows between unbounded preceding and 1 preceding
    ) as least_later
    from (
        select
            run_id, producer, topic, "partition", int_div(sequence, least(:split, 4096)) as slice,
            min(first_offset) as least_offset
        from numbered_records
        where first_offset is not null
        group by run_id, producer, topic, "partition", int_div(sequence, least(:split, 4096))
    ) as slices
) as following_slices
where least_later is not null;

-- A row per record that lies behind one of a greater number, and the first offset of such. Of equal
-- numbers, the greater offset comes first: it can't be less than the others.
create table behind_records as
select run_id, producer, topic, "partition", sequence, value_id, first_offset, least_later
from (
    select
        run_id, producer, topic, "partition", sequence, value_id, first_offset,
        min(first_offset) over (
            partition by slice, producer, "partition", topic, run_id
            order by sequence desc, first_offset desc
            rows between unbounded preceding and 1 preceding
        ) as least_later
    from (
        select
            run_id, producer, topic, "partition", int_div(sequence, least(:split, 4096)) as slice,
            sequence, value_id, first_offset
        from numbered_records
        where first_offset is not null
        union all
        select
            run_id, producer, topic, "partition", slice, 9223372036854775807, null, least_later
        from later_slices
    ) as records_and_later
) as compared_records
where value_id is not null and first_offset > least_later;

-- A row per record behind others: the one of a greater number that lies first.
create view overtaking_records as
select run_id, topic, "partition", value_id, other_value
from (
    select
        behind.run_id, behind.topic, behind."partition", behind.value_id,
        other.value_id as other_value,
        row_number() over (
            partition by behind.run_id, behind.topic, behind."partition", behind.value_id
            order by other.sequence, other.value_id
        ) as place
    from behind_records as behind
    join numbered_records as other
        on behind.run_id = other.run_id and behind.producer = other.producer
        and behind.topic = other.topic and behind."partition" = other."partition"
        and behind.least_later = other.first_offset
    where behind.sequence < other.sequence
) as places_of_overtaking
where place = 1;

-- A row per producer and piece of its numbers: those that were sent, and those that are stored; the
-- first and the last that the producer stored, and the last that it sent in the pieces before.
create view number_pieces as
select
    run_id, producer, piece * 60 - 600000000000000000 as start_number, sent_bits, stored_bits,
    min(case when stored_bits <> 0
        then piece * 60 - 600000000000000000 + bit_count((stored_bits & -stored_bits) - 1) end
    ) over (partition by run_id, producer) as stored_from,
    max(case when stored_bits <> 0
        then piece * 60 - 600000000000000001 + length(bin(stored_bits)) end
    ) over (partition by run_id, producer) as stored_to,
    lag(piece * 60 - 600000000000000001 + length(bin(sent_bits))) over (
        partition by run_id, producer order by piece
    ) as sent_before
from (
    select
        run_id, producer, piece, bit_or(bit) as sent_bits,
        bit_or(case when is_stored then bit else 0 end) as stored_bits
    from (
        select
            run_id, producer, first_offset is not null as is_stored,
            int_div(sequence + 600000000000000000, 60) as piece,
            cast(1 as bigint) << cast((sequence + 600000000000000000) % 60 as int) as bit
        from numbered_records
    ) as piecewise_numbers
    group by run_id, producer, piece
) as numbers_in_pieces;

-- A row per number between stored ones that was sent, and either is not stored, or is not the next
-- one after the `low_number`, that was sent before.
create table odd_numbers as
select run_id, producer, stored_from, stored_to, low_number, high_number, unstored
from (
    select
        run_id, producer, stored_from, stored_to,
        start_number + place as high_number,
        case
            when lower_bits = 0 then sent_before
            else start_number + length(bin(lower_bits)) - 1
        end as low_number,
        (stored_bits & bit) = 0 as unstored
    from (
        select
            run_id, producer, start_number, place, stored_from, stored_to, sent_before,
            stored_bits, sent_bits,
            cast(1 as bigint) << cast(place as int) as bit,
            sent_bits & ((cast(1 as bigint) << cast(place as int)) - 1) as lower_bits
        from (
            select *, explode(sequence(0, 59)) as place
            from number_pieces
            where
                stored_bits <> 1152921504606846975
                or start_number - sent_before > 1
        ) as places_in_pieces
    ) as places_with_bits
    where (sent_bits & bit) <> 0
) as sent_numbers
where
    stored_from <= high_number and high_number <= stored_to
    and (unstored or (stored_from <= low_number and high_number - low_number > 1));

-- A row per gap of which nothing was sent, with the last record before it and the first behind it.
create view number_gaps as
select
    run_id, producer, low_number, high_number,
    max(case when is_low then topic end) as low_topic,
    max(case when is_low then value_id end) as low_value,
    bool_or(aborted) as aborted,
    max(case when not is_low then topic end) as topic,
    max(case when not is_low then value_id end) as value_id,
    max(case when not is_low then "partition" end) as "partition",
    max(case when not is_low then first_offset end) as first_offset
from (
    select
        run_id, producer, low_number, high_number, is_low, topic, value_id, "partition",
        first_offset, aborted,
        row_number() over (
            partition by run_id, producer, low_number, is_low
            order by
                case when is_low then value_id end desc, case when is_low then topic end desc,
                value_id, topic, "partition"
        ) as place
    from (
        select
            run_id, producer, low_number, high_number, which = 0 as is_low,
            case when which = 0 then low_number else high_number end as sequence
        from (
            select *, explode(sequence(0, 1)) as which
            from odd_numbers
            where high_number - low_number > 1 and low_number >= stored_from
        ) as twice
    ) as ends_of_gaps
    join numbered_records using (run_id, producer, sequence)
) as records_at_gaps
where place = 1
group by run_id, producer, low_number, high_number;

-- A row per record behind others, or behind a gap: if clients wrote the trace, or else a record that
-- no broker got was given up by its producer.
create table disorders as
select
    run_id, topic, value_id, producer, behind_records.sequence, "partition", first_offset,
    cast(null as bigint) as never_sent, topic as other_topic, other_value, false as aborted
from behind_records
join overtaking_records using (run_id, topic, "partition", value_id)
union all
select
    run_id, topic, value_id, producer, low_number + 1, "partition", first_offset,
    high_number - low_number - 1, low_topic, low_value, aborted
from number_gaps
anti join (select run_id from audited_runs where observed) as observed_runs using (run_id);

-- The same, with the attempts to send the record.
create view known_disorders as
select
    run_id, topic, value_id, disorders.producer, disorders.sequence, disorders."partition",
    first_offset, never_sent, other_topic, other_value, aborted,
    "group", "key", acks, send_us, attempts, attempts > 1 or last_attempt > 1 as resent
from disorders
join (
    select
        run_id, topic, value_id, "group", "key", acks, send_us, attempts, last_attempt
    from records
    union all
    select
        run_id, topic, value_id, "group", "key", acks, send_us, 1, attempt
    from sends
    anti join suspects using (run_id, topic, value_id)
) as sent_records using (run_id, topic, value_id);

create view sequence_cases as
select
    run_id,
    case
        when never_sent is not null then 'sequence_gap'
        when resent then 'retry_reorder'
        else 'nonmonotonic_send'
    end as anomaly,
    "group" as producer_group,
    topic, "partition", first_offset as "offset", producer,
    case when never_sent is null then "key" end as "key",
    case when never_sent is null then value_id end as value_id,
    sequence,
    send_us as time_us,
    coalesce(never_sent, 1) as weight,
    case when never_sent is not null and acks = 0 then 'acks=0' end as permit,
    never_sent is null and resent as excusable,
    attempts,
    -- A producer that aborts a transaction may have numbered records that it never sent.
    case when never_sent is not null and aborted then 'perhaps of an aborted transaction' end
        as doubt,
    cast(null as string) as broken,
    case when never_sent is null then topic else other_topic end as record_topic,
    case when never_sent is null then value_id else other_value end as record_value,
    case when never_sent is null then other_topic else topic end as other_topic,
    case when never_sent is null then other_value else value_id end as other_value
from known_disorders
union all
-- Acknowledged records that were not stored, though numbers before and behind them were. Of
-- others, their producer knows that they may not be: they are failed sends.
select
    records.run_id, 'sequence_gap', "group", topic, null, null, records.producer, "key", value_id,
    sequence,
    send_us, 1,
    case
        when oks > 0 and acks = 1 then 'acks=1'
        when acks = 0 then 'acks=0'
    end,
    false,
    attempts,
    null,
    case when oks > 0 then 'acks=all' end,
    topic, value_id, null, null
from records
anti join stored_places using (run_id, topic, value_id)
join odd_numbers
    on records.run_id = odd_numbers.run_id and records.producer = odd_numbers.producer
    and records.sequence = odd_numbers.high_number
where
    attempts > 0 and aborts <> attempts and (oks > 0 or acks = 0) and unstored
    and stored_from < sequence and sequence < stored_to;
