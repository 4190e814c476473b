-- The outcomes of transactions, joined with the sends that belong to them.

-- A row per transaction: how it ended. Of two rows of one, the greater counts, in this order; an
-- unknown time is least.
create table transaction_ends as
select run_id, transaction, outcome as fate, decided_us, ended_us
from (
    select run_id, transaction, outcome, decided_us, ended_us, row_number() over (
        partition by run_id, transaction order by outcome desc, decided_us desc, ended_us desc
    ) as place
    from transactions
) as ranked
where place = 1;

-- A row per epoch of a transactional id but the last: when the next one was assigned.
create table superseded_epochs as
select run_id, transactional_id, epoch, superseded_us
from (
    select run_id, transactional_id, epoch, min(given_us) over (
        partition by run_id, transactional_id order by epoch desc
        rows between unbounded preceding and 1 preceding
    ) as superseded_us
    from (
        select run_id, transactional_id, epoch, min(given_us) as given_us
        from (
            select run_id, transactional_id, epoch, coalesce(epoch_us, begun_us) as given_us
            from transactions
            union all
            select distinct run_id, transactional_id, epoch, cast(null as bigint) as given_us
            from sends
            where transactional_id is not null
        ) as epochs
        group by run_id, transactional_id, epoch
    ) as given_epochs
) as following
where superseded_us is not null;

-- A row per send, with `fate`, the outcome of its transaction; `aborted`; `hidden`: aborted, and
-- perhaps in the log all the same; and `late`: sent when the transaction was over, or when another
-- producer had the transactional id. The errors are those of a record that is in the log, where
-- only a transaction hides it.
create view resolved_sends as
select /*+ broadcast(superseded_epochs) */
    run_id, "group", producer, sequence, attempt, "key", value_id, acks, outcome, error,
    send_us, answer_us, topic, "partition", "offset", transactional_id, epoch, transaction,
    equal_to, compaction,
    fate,
    decided_us,
    coalesce(fate = 'aborted', false) or coalesce(error in :abort_errors, false) as aborted,
    coalesce(fate = 'aborted', false) and outcome <> 'fail' as hidden,
    coalesce(send_us > superseded_us, false) or coalesce(send_us > ended_us, false) as late
from sends
left join transaction_ends using (run_id, transaction)
left join superseded_epochs using (run_id, transactional_id, epoch);

-- Offsets that hold though their transaction is not committed, and the reverse. For groups with
-- effects in the trace, `commit_cases` finds these cases by input.
create view held_cases as
select
    run_id,
    case when held then 'offset_without_result' else 'result_without_offset' end as anomaly,
    "group" as consumer_group, topic, "partition", "offset", transaction, time_us
from commits
join transaction_ends using (run_id, transaction)
anti join (select distinct run_id, "group" from effects) as recorded using (run_id, "group")
where held <> (fate = 'committed');
