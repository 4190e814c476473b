-- Order within a key: the versions of one row of a table that were applied after a higher one.
--
-- Effects of one microsecond count as applied in the order of their partitions, offsets and
-- versions. If the log itself has the versions in that order, the settings of the producer decide.
-- The window sees a range of time of one key; the highest version before a range is put into it as
-- one row, so that one hot key is many tasks.

create view applied_versions as
select
    run_id, "group", topic, "key", int_div(time_us, :split_us) as time_range, time_us,
    "partition", "offset", version, consumer
from committed_effects
where "key" is not null and version is not null;

-- A row per range of a key but the first: the highest version that was applied before it.
create view highest_before as
select run_id, "group", topic, "key", time_range, version
from (
    select run_id, "group", topic, "key", time_range, max(highest) over (
        partition by run_id, "group", topic, "key" order by time_range
        rows between unbounded preceding and 1 preceding
    ) as version
    from (
        select run_id, "group", topic, "key", time_range, max(version) as highest
        from applied_versions
        group by run_id, "group", topic, "key", time_range
    ) as highest_in_range
) as highest_so_far
where version is not null;

-- A row per effect that came after one of a higher version.
create table late_effects as
select
    run_id, "group", topic, "key", time_us, "partition", "offset", version, consumer, highest
from (
    select
        run_id, "group", topic, "key", time_us, "partition", "offset", version, consumer,
        max(version) over (
            partition by run_id, "group", topic, "key", time_range
            order by time_us, "partition", "offset", version
            rows between unbounded preceding and 1 preceding
        ) as highest
    from (
        select
            run_id, "group", topic, "key", time_range, time_us, "partition", "offset", version,
            consumer
        from applied_versions
        union all
        -- Without a time, it comes first.
        select run_id, "group", topic, "key", time_range, null, null, null, version, null
        from highest_before
    ) as versions
) as applied_in_order
where time_us is not null and version < highest;

-- A row per late effect, with the last place that had the highest version.
create view latest_places as
select
    run_id, "group", topic, "key", time_us, "partition", "offset", version,
    other_partition, other_offset
from (
    select
        late.run_id, late."group", late.topic, late."key", late.time_us, late."partition",
        late."offset", late.version,
        other."partition" as other_partition, other."offset" as other_offset,
        row_number() over (
            partition by
                late.run_id, late."group", late.topic, late."key", late.time_us,
                late."partition", late."offset", late.version
            order by other."partition" desc, other."offset" desc
        ) as place
    from late_effects as late
    join applied_versions as other
        on late.run_id = other.run_id and late."group" = other."group"
        and late.topic = other.topic and late."key" = other."key"
        and late.highest = other.version
    where
        other.time_us < late.time_us
        or (other.time_us = late.time_us and (
            other."partition" < late."partition"
            or (other."partition" = late."partition" and other."offset" < late."offset")
        ))
) as places_of_highest
where place = 1;

-- A row per place of a late effect: its value, the least that was read there.
create view late_records as
select run_id, topic, "partition", "offset", min(value_id) as value_id
from reads
semi join late_effects using (run_id, topic, "partition", "offset")
group by run_id, topic, "partition", "offset";

-- A row per such place, with the producer that sent its value first. A record that was sent again
-- in another transaction counts as it was sent there.
create view late_senders as
select
    run_id, topic, "partition", "offset", value_id, "group" as producer_group, producer, sequence
from (
    select
        run_id, topic, late_records."partition", late_records."offset", value_id, "group", producer,
        sequence,
        row_number() over (
            partition by run_id, topic, late_records."partition", late_records."offset"
            order by
                coalesce(fate = 'aborted' and outcome <> 'fail', false), attempt, "group", producer,
                sequence
        ) as place
    from late_records
    left join sends using (run_id, topic, value_id)
    left join transaction_ends using (run_id, transaction)
) as attempts_of_late
where place = 1;

create view key_cases as
select
    run_id,
    'key_order_violation' as anomaly,
    producer_group,
    "group" as consumer_group,
    topic, "partition", "offset", producer, consumer, "key", value_id, sequence, time_us,
    "partition" = other_partition and "offset" > other_offset as excusable,
    other_partition as other_input_partition,
    other_offset as other_input_offset
from late_effects
join latest_places
    using (run_id, "group", topic, "key", time_us, "partition", "offset", version)
left join late_senders using (run_id, topic, "partition", "offset");
