-- Offsets with two or more values, by reads and acknowledgements.
--
-- An acknowledgement with acks=1 is of one broker, whose log may be lost: it permits differences, as
-- long as all others agree.

-- A row per piece of 60 offsets (`read_pieces`) in which more records lie than there are places.
create view crowded_pieces as
select run_id, topic, "partition", piece
from (
    select
        run_id, topic, "partition",
        int_div("offset" + 600000000000000000, 60) as piece,
        cast(1 as bigint) << cast(("offset" + 600000000000000000) % 60 as int) as bit
    from traced_records
    where not suspect
    union all
    select
        run_id, topic, "partition",
        int_div("offset" + 600000000000000000, 60),
        cast(1 as bigint) << cast(("offset" + 600000000000000000) % 60 as int)
    from suspect_places
) as places_of_records
group by run_id, topic, "partition", piece
having count(*) > bit_count(bit_or(bit));

create view offset_cases as
select
    run_id, 'inconsistent_offset' as anomaly, topic, "partition", "offset",
    one_value as value_id, time_us,
    case when coalesce(firm_one = firm_other, true) then 'acks=1' end as permit,
    topic as record_topic, one_value as record_value,
    topic as other_topic, another_value as other_value
from (
    select
        run_id, topic, "partition", "offset",
        min(value_id) as one_value,
        max(value_id) as another_value,
        min(firm_value) as firm_one,
        max(firm_value) as firm_other,
        min(time_us) as time_us
    from (
        select
            run_id, topic, "partition", "offset", value_id, send_us as time_us,
            case when acks = -1 then value_id end as firm_value,
            int_div("offset" + 600000000000000000, 60) as piece
        from sends
        where outcome = 'ok' and "offset" is not null
        union all
        select
            run_id, topic, "partition", "offset", value_id, time_us, value_id,
            int_div("offset" + 600000000000000000, 60)
        from reads
    ) as observations
    semi join crowded_pieces using (run_id, topic, "partition", piece)
    group by run_id, topic, "partition", "offset"
) as values_of_offsets
where one_value <> another_value;
