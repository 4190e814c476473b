-- The runs, and the settings of their groups. Settings for all runs, which the configuration has
-- with the run null, are repeated for each.

-- A row per run in the tables and in the configuration: which rows it has, and how many; whether it
-- is complete; and whether it is `observed`: brokers or a proxy wrote it, and not the clients. Sends
-- in transactions make a run transactional, also without the table of transactions.
create table audited_runs as
select
    run_id,
    bool_or(has_sends) as has_sends,
    bool_or(has_stored) as has_stored,
    bool_or(has_acknowledged) as has_acknowledged,
    bool_or(has_transactional) as has_transactional,
    bool_or(kind = 'read') as has_reads,
    bool_or(kind = 'effect') as has_effects,
    bool_or(kind = 'commit') as has_commits,
    bool_or(kind = 'transaction') as has_transactions,
    cast(sum(case when kind = 'send' then number else 0 end) as bigint) as sent_count,
    cast(sum(case when kind = 'send' then successes else 0 end) as bigint) as acknowledged_count,
    cast(sum(case when kind = 'read' then number else 0 end) as bigint) as read_count,
    cast(sum(case when kind = 'read' then successes else 0 end) as bigint) as applied_count,
    cast(sum(case when kind = 'effect' then number else 0 end) as bigint) as effect_count,
    cast(sum(case when kind = 'commit' then number else 0 end) as bigint) as commit_count,
    coalesce(
        bool_and(complete), (select bool_and(complete) from runs where run_id is null), true
    ) as complete,
    coalesce(
        bool_or(observed), (select bool_or(observed) from runs where run_id is null), false
    ) as observed
from (
    select
        run_id,
        'send' as kind,
        count(*) as number,
        count(*) filter (where outcome = 'ok') as successes,
        true as has_sends,
        bool_or(outcome <> 'fail') as has_stored,
        bool_or(outcome = 'ok' and acks <> 0) as has_acknowledged,
        bool_or(transactional_id is not null) as has_transactional,
        cast(null as boolean) as complete,
        cast(null as boolean) as observed
    from sends
    group by run_id
    union all
    select
        run_id, 'read', count(*), count(*) filter (where applied), false, false, false, false, null,
        case when count(reading) + count(delivery) > 0 then true end
    from reads
    group by run_id
    union all
    select run_id, 'effect', count(*), 0, false, false, false, false, null, null
    from effects
    group by run_id
    union all
    select run_id, 'commit', count(*), 0, false, false, false, false, null, null
    from commits
    group by run_id
    union all
    select run_id, 'transaction', 0, 0, false, false, false, false, null, null
    from transactions
    group by run_id
    union all
    -- A run may have no rows.
    select run_id, 'none', 0, 0, false, false, false, false, complete, observed
    from runs
    where run_id is not null
) as known_runs
group by run_id;

-- A row per run and group of producers whose settings are known.
create view producer_settings as
select audited_runs.run_id, "group", idempotence, max_in_flight, retries, single_writer
from producers
cross join audited_runs
where producers.run_id is null
union all
select run_id, "group", idempotence, max_in_flight, retries, single_writer
from producers
where run_id is not null;

-- A row per run and group of consumers whose settings are given.
create view given_consumer_settings as
select audited_runs.run_id, "group", assignment, isolation
from consumers
cross join audited_runs
where consumers.run_id is null
union all
select run_id, "group", assignment, isolation from consumers where run_id is not null;

-- The same, with the groups of clients whose settings are given by client id.
create table consumer_settings as
select run_id, "group", assignment, isolation from given_consumer_settings
union all
select
    run_id, consumer_group as "group", min(assignment) as assignment, min(isolation) as isolation
from given_consumer_settings
join (
    select distinct run_id, "group", consumer_group from reads where consumer_group is not null
) as clients using (run_id, "group")
where (run_id, consumer_group) not in (select run_id, "group" from given_consumer_settings)
group by run_id, consumer_group;
