-- Several writers at a partition that should have one: a producer that began to write to it before an
-- earlier one had ended. An interval goes from the first send to the last response, or to the last
-- send if that came later. Sends that definitely failed don't count. Each producer that begins within
-- another's interval is one case, so that n writers at once are n - 1.

-- A row per producer and partition: its interval.
create view writing as
select run_id, topic, "partition", "group", producer, min(send_us) as start_us,
    max(send_us) as last_us, max(greatest(send_us, answer_us)) as end_us
from sends
where outcome <> 'fail'
group by run_id, topic, "partition", "group", producer;

-- A row per interval that began within another: that of the earlier ones which ended last.
create table overlapping_writers as
select *
from (
    select run_id, topic, "partition", "group", producer, start_us,
        max(end_us) over earlier as other_end_us,
        max_by("group", end_rank) over earlier as other_group,
        max_by(producer, end_rank) over earlier as other_producer,
        max_by(last_us, end_rank) over earlier as other_last_us
    from (
        select *, row_number() over (
            partition by run_id, topic, "partition" order by end_us, producer, "group"
        ) as end_rank
        from writing
    ) ranked_intervals
    window earlier as (
        partition by run_id, topic, "partition" order by start_us, producer, "group"
        rows between unbounded preceding and 1 preceding
    )
) intervals
where start_us < other_end_us;

-- The same, with the first value that the one sent, and the last of the other. Of what is sent in one
-- microsecond, the lower value counts as sent first.
create view overlapping_values as
select
    run_id, topic, "partition", "group", producer, start_us, other_group,
    min(case when is_first then value_id end) as first_value,
    max(case when not is_first then value_id end) as other_last_value
from (
    select
        run_id, topic, "partition", "group", producer, start_us, other_group,
        which = 0 as is_first,
        case when which = 0 then "group" else other_group end as sender_group,
        case when which = 0 then producer else other_producer end as sender,
        case when which = 0 then start_us else other_last_us end as send_us
    from (select *, explode(sequence(0, 1)) as which from overlapping_writers) as twice
) as ends_of_intervals
join (
    select
        run_id, topic, "partition", "group" as sender_group, producer as sender, send_us, value_id
    from sends
    where outcome <> 'fail'
) as values_sent using (run_id, topic, "partition", sender_group, sender, send_us)
group by run_id, topic, "partition", "group", producer, start_us, other_group;

create view writer_cases as
select
    run_id,
    'multi_writer' as anomaly,
    "group" as producer_group,
    other_group, topic, "partition", producer,
    first_value as value_id,
    start_us as time_us,
    true as excusable,
    topic as record_topic,
    other_last_value as record_value,
    topic as other_topic,
    first_value as other_value
from overlapping_values;
