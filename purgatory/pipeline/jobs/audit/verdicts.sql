-- All cases, and the verdict on each by the settings of its groups.

-- A row per case: what happened where; how many cases the row stands for; the evidence for the
-- verdict; and which rows a witness shows, those of at most two records and two inputs.
create view found_cases as
select
    run_id, anomaly,
    cast(null as string) as producer_group,
    cast(null as string) as other_group,
    cast(null as string) as consumer_group,
    topic, "partition", "offset",
    cast(null as bigint) as producer,
    cast(null as bigint) as consumer,
    cast(null as bigint) as "key",
    value_id,
    cast(null as bigint) as sequence,
    cast(null as bigint) as transaction,
    time_us,
    cast(1 as bigint) as weight,
    permit,
    cast(null as boolean) as excusable,
    cast(null as bigint) as attempts,
    cast(null as string) as doubt,
    cast(null as string) as broken,
    record_topic, record_value, other_topic, other_value,
    cast(null as string) as input_group,
    cast(null as string) as input_topic,
    cast(null as int) as input_partition,
    cast(null as bigint) as input_offset,
    cast(null as int) as other_input_partition,
    cast(null as bigint) as other_input_offset
from offset_cases
union all
select
    run_id, anomaly, producer_group, null, null, topic, "partition", "offset", producer, null,
    "key", value_id, sequence, transaction, time_us, 1, permit, excusable, attempts, doubt, broken,
    topic, value_id, null, null, null, null, null, null, null, null
from record_anomalies
union all
select
    run_id, anomaly, producer_group, null, null, topic, "partition", "offset", producer, null,
    "key", value_id, sequence, null, time_us, 1, null, false, attempts, doubt, null,
    topic, value_id, topic, other_value, null, null, null, null, null, null
from equal_cases
union all
select
    run_id, anomaly, producer_group, null, null, topic, "partition", "offset", producer, null,
    "key", value_id, sequence, null, time_us, weight, permit, excusable, attempts, doubt, broken,
    record_topic, record_value, other_topic, other_value, null, null, null, null, null, null
from sequence_cases
union all
select
    run_id, anomaly, producer_group, other_group, null, topic, "partition", null, producer, null,
    null, value_id, null, null, time_us, 1, null, excusable, null, null, null,
    record_topic, record_value, other_topic, other_value, null, null, null, null, null, null
from writer_cases
union all
select
    run_id, anomaly, null, null, consumer_group, topic, "partition", "offset", null, consumer,
    null, value_id, null, null, time_us, 1, null, excusable, null, doubt, null,
    record_topic, record_value, other_topic, other_value, null, null, null, null, null, null
from poll_cases
union all
select
    run_id, anomaly, null, null, consumer_group, topic, "partition", "offset", null, consumer,
    null, value_id, null, transaction, time_us, 1, permit, excusable, null, doubt, null,
    topic, value_id, null, null, consumer_group, topic, "partition", "offset", null, null
from input_cases
union all
select
    run_id, anomaly, null, null, consumer_group, topic, "partition", "offset", null, consumer,
    null, value_id, null, transaction, time_us, 1, null, excusable, null, doubt, null,
    topic, value_id, null, null, consumer_group, topic, "partition", "offset", "partition",
    other_input_offset
from commit_cases
union all
select
    run_id, anomaly, producer_group, null, consumer_group, topic, "partition", "offset", producer,
    consumer, "key", value_id, sequence, null, time_us, 1, null, excusable, null, null, null,
    topic, value_id, null, null, consumer_group, topic, "partition", "offset",
    other_input_partition, other_input_offset
from key_cases
union all
select
    run_id, anomaly, null, null, consumer_group, topic, "partition", "offset", null, null,
    null, value_id, null, transaction, time_us, 1, permit, null, null, doubt, broken,
    record_topic, record_value, other_topic, other_value, null, null, null, null, null, null
from part_cases
union all
select
    run_id, anomaly, null, null, consumer_group, topic, "partition", "offset", null, null,
    null, null, null, transaction, time_us, 1, null, null, null, null, null,
    null, null, null, null, consumer_group, topic, "partition", "offset", null, null
from held_cases;

-- A row per case with the settings of its groups, whether its run is complete, and the expectation
-- that it violates. `forbidden` is what forbids it, where only settings decide.
create view configured_cases as
select /*+ broadcast(p), broadcast(o), broadcast(c), broadcast(anomalies), broadcast(audited_runs) */
    found_cases.*,
    coalesce(excusable, false) as explained,
    coalesce(complete, true) as complete,
    absent,
    expected,
    p.idempotence, p.max_in_flight, p.retries,
    p.single_writer as first_single,
    o.single_writer as other_single,
    c.assignment,
    case
        when anomaly in ('duplicate', 'lost_ack_duplicate') then case
            when p.idempotence then 'idempotence=true'
            when p.retries = 0 then 'retries=0'
        end
        when anomaly in ('retry_reorder', 'key_order_violation') then case
            when p.idempotence then 'idempotence=true'
            when p.max_in_flight = 1 then 'max_in_flight=1'
            when p.retries = 0 then 'retries=0'
        end
        when anomaly = 'multi_writer' then case
            when p.single_writer or o.single_writer then 'single_writer=true'
        end
        when anomaly in ('poll_skip', 'nonmonotonic_poll', 'reprocess') then case
            when c.assignment = 'assign' then 'assignment=assign'
        end
    end as forbidden
from found_cases
left join anomalies using (anomaly)
left join audited_runs using (run_id)
left join producer_settings as p
    on p.run_id = found_cases.run_id and p."group" = producer_group
left join producer_settings as o
    on o.run_id = found_cases.run_id and o."group" = other_group
left join consumer_settings as c
    on c.run_id = found_cases.run_id and c."group" = consumer_group;

-- The same with the settings that permit it, and those that would decide and are unknown.
--
-- A retry after a lost response is stored twice, unless producers are idempotent; it may be stored
-- behind later records, if several requests were in flight. Several producers may write, unless one
-- of the two groups requires a single writer. With subscribe, partitions are reassigned; with assign,
-- a reader keeps its position.
create view excused_cases as
select
    configured_cases.*,
    case
        when anomaly in ('duplicate', 'lost_ack_duplicate') then case
            when not idempotence then 'idempotence=false'
        end
        when anomaly in ('retry_reorder', 'key_order_violation') then case
            when not idempotence and max_in_flight > 1
                then 'idempotence=false with max_in_flight=' || cast(max_in_flight as string)
        end
        when anomaly = 'multi_writer' then case
            when not first_single and not other_single then 'single_writer=false'
        end
        when anomaly in ('poll_skip', 'nonmonotonic_poll', 'reprocess') then case
            when assignment = 'subscribe' then 'assignment=subscribe'
        end
    end as excuse,
    'configuration unknown: ' || case
        when anomaly in ('duplicate', 'lost_ack_duplicate') then case
            when idempotence is null then 'idempotence'
        end
        when anomaly in ('retry_reorder', 'key_order_violation') then case
            when idempotence is null and max_in_flight is null then 'idempotence, max_in_flight'
            when idempotence is null then 'idempotence'
            when max_in_flight is null then 'max_in_flight'
        end
        when anomaly = 'multi_writer' then case
            when first_single is null or other_single is null then 'single_writer'
        end
        when anomaly in ('poll_skip', 'nonmonotonic_poll', 'reprocess') then case
            when assignment is null then 'assignment'
        end
    end as unknown
from configured_cases;

-- The same with all that permits the case, and that makes it doubtful. No setting permits what
-- violates an expectation; of an incomplete run, what is not in the trace proves nothing.
create view weighed_cases as
select
    excused_cases.*,
    coalesce(permit, case when explained and forbidden is null then excuse end) as permitting,
    coalesce(
        doubt,
        case when absent and not complete then 'incomplete run' end,
        case when explained and forbidden is null and expected is null then unknown end
    ) as doubtful
from excused_cases;

-- A row per case with its verdict, and the setting or the reason that decided.
create table cases as
select
    run_id, anomaly, coalesce(consumer_group, producer_group) as "group",
    case
        when permitting is not null and expected is null then 'permitted'
        when permitting is not null or doubtful is null then 'violation'
        else 'indeterminate'
    end as verdict,
    case
        when permitting is not null and expected is not null
            then expected || ' expected, in spite of ' || permitting
        else coalesce(
            permitting, doubtful, broken,
            case when explained then forbidden end,
            case when explained and forbidden is null
                then expected || ' expected, ' || unknown end
        )
    end as setting,
    topic, "partition", "offset", producer, consumer, "key", value_id, sequence, transaction,
    time_us, weight,
    record_topic, record_value, other_topic, other_value, input_group, input_topic,
    input_partition, input_offset, other_input_partition, other_input_offset
from weighed_cases;

-- A row per run, anomaly, group, verdict and setting: how many cases. An anomaly that was not found
-- has a row with the count 0: with the verdict `none`, or `indeterminate` where the trace lacks the
-- rows that would show it.
create view audit as
select
    run_id, anomaly, "group",
    coalesce(verdict, case when reason is null then 'none' else 'indeterminate' end) as verdict,
    coalesce(setting, case when verdict is null then reason end) as setting,
    coalesce("count", 0) as "count"
from (
    select
        run_id, anomaly,
        case
            when needs_sends and not has_sends then :no_sends
            when needs_stored and not has_stored then :none_stored
            when needs_acknowledged and not has_acknowledged then :none_acknowledged
            -- The effects of a group, if it has any, are the inputs that it applied.
            when needs_reads and not has_reads and not (anomaly = 'effect_duplicate' and has_effects)
                then :no_reads
            -- A trace with transactions needs their commits.
            when observed and not has_effects
                and anomaly in ('effect_duplicate', 'offset_without_result') then :no_effects
            when not has_effects and (
                anomaly = 'key_order_violation' or (of_commits and not has_transactions)
            ) then 'no effects in the trace'
            when of_commits and not has_commits then 'no commits in the trace'
            when anomaly in ('partial_transaction', 'zombie_write') and has_transactional
                and not has_transactions then 'no transactions in the trace'
            else lacks
        end as reason
    from (
        select
            anomalies.*,
            anomaly in ('offset_without_result', 'result_without_offset') as of_commits,
            audited_runs.*,
            lacks
        from audited_runs
        cross join anomalies
        left join lacking using (run_id, anomaly)
    ) as pairs
) as reasons
left join (
    select run_id, anomaly, "group", verdict, setting, cast(sum(weight) as bigint) as "count"
    from cases
    group by run_id, anomaly, "group", verdict, setting
) as counted using (run_id, anomaly);
