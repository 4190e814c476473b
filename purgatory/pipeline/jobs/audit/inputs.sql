-- Inputs delivered or applied again, results without offsets and offsets without results.
--
-- A group's applied inputs are its effects, if the trace has any of the group; else its reads.
-- Effects count once their transaction is committed. Brokers don't see what clients do: in a trace
-- of brokers, an input that was only delivered again is no case, unless its group restarted from the
-- beginning, without any commit; and offsets need not hold with results.
--
-- Most inputs are as they should be: sets of bits of 60 offsets (`read_pieces`) find the others,
-- and inputs are counted only there.

create view committed_effects as
select
    run_id, "group", consumer, topic, "partition", "offset", "key", version, time_us, transaction
from effects
left join transaction_ends using (run_id, transaction)
where coalesce(fate = 'committed', true);

-- A row per commit that holds, by the column `held`, or else by its transaction.
create view valid_commits as
select run_id, "group", topic, "partition", "offset", transaction
from commits
left join transaction_ends using (run_id, transaction)
where coalesce(held, fate = 'committed', true);

create view committed_offsets as
select run_id, "group", topic, "partition", max("offset") as committed
from valid_commits
group by run_id, "group", topic, "partition";

-- A row per transaction and partition: up to where it committed together with its results.
create view offsets_with_results as
select run_id, "group", topic, "partition", transaction, max("offset") as committed_with_it
from valid_commits
where transaction is not null
group by run_id, "group", topic, "partition", transaction;

-- A row per group that has effects: whether it has commits, too.
create view recorded_groups as
select run_id, "group", true as recorded, coalesce(commits_some, false) as commits_some
from (select distinct run_id, "group" from effects) as applying
left join (select distinct run_id, "group", true as commits_some from commits) as committing
    using (run_id, "group");

-- A row per committed effect, with its place in its piece; an effect is `stray` if its transaction
-- did not commit its input.
create view piecewise_effects as
select
    run_id, "group", topic, "partition",
    int_div("offset" + 600000000000000000, 60) as piece,
    cast(1 as bigint) << cast(("offset" + 600000000000000000) % 60 as int) as bit,
    transaction is not null and coalesce(committed_with_it <= "offset", true) as stray
from committed_effects
left join offsets_with_results using (run_id, "group", topic, "partition", transaction);

-- A row per group and topic in which it committed an offset.
create view committing_groups as
select distinct run_id, "group", topic, true as commits_offsets from commits;

-- A row per group and partition that the group read again from where it had begun, when it had had no
-- members in between.
create view begun_again as
select run_id, "group", topic, "partition", true as began_again
from (
    select
        run_id, "group", topic, "partition", restarts, min(fetch_offset) as began,
        min(min(fetch_offset)) over (partition by run_id, "group", topic, "partition") as first_began
    from read_rows
    where restarts is not null
    group by run_id, "group", topic, "partition", restarts
) as lives
where began = first_began
group by run_id, "group", topic, "partition"
having count(*) > 1;

-- A row per group and piece: how often its offsets were read and applied, and which of them.
create view input_pieces as
select
    run_id, "group", topic, "partition", piece,
    sum(readings) > bit_count(bit_or(read_bits)) as read_again,
    sum(applications) > bit_count(bit_or(effect_bits)) as applied_again,
    bit_or(read_bits) as read_bits,
    bit_or(effect_bits) as effect_bits,
    bit_or(accepted_bits) as accepted_bits,
    bool_or(stray) as stray
from (
    select
        run_id, "group", topic, "partition", piece, readings, read_bits,
        accepted_bits, 0 as applications, cast(0 as bigint) as effect_bits, false as stray
    from read_pieces
    union all
    select run_id, "group", topic, "partition", piece, 0, 0, 0, 1, bit, stray from piecewise_effects
) as readings_and_applications
group by run_id, "group", topic, "partition", piece;

-- A row per piece in which something was read or applied again, or whose results and committed
-- offsets differ. A partition without a commit, of a group that has some, counts as committed up to
-- nothing.
create view odd_pieces as
select /*+ broadcast(recorded_groups), broadcast(committed_offsets) */
    run_id, "group", topic, "partition", piece
from (
    select
        run_id, "group", topic, "partition", piece, read_again, applied_again, read_bits,
        effect_bits, stray,
        coalesce(recorded and (commits_some or accepted_bits <> 0), false) as compared,
        accepted_bits | case
            when committed >= piece * 60 - 599999999999999940 then 1152921504606846975
            when committed > piece * 60 - 600000000000000000 then
                (cast(1 as bigint) << cast(committed - (piece * 60 - 600000000000000000) as int)) - 1
            else 0
        end as covered_bits
    from input_pieces
    left join recorded_groups using (run_id, "group")
    left join committed_offsets using (run_id, "group", topic, "partition")
) as compared_pieces
where
    read_again or applied_again
    or (compared and (stray or (covered_bits & read_bits & ~effect_bits) <> 0
        or (effect_bits & ~covered_bits) <> 0));

-- A row per input in these pieces: how often it was delivered, and how often applied.
create table odd_inputs as
select
    run_id, "group", topic, "partition", "offset",
    sum(delivered) as deliveries,
    sum(accepted) as accepts,
    count(reading) as readings,
    count(distinct reading) as distinct_readings,
    max(restarts) > min(restarts) as restarted,
    case when recorded then sum(has_effect) else sum(applied) end as applications,
    min(value_id) as value_id,
    min(consumer) as consumer,
    min(time_us) as time_us,
    min(transaction) as transaction,
    recorded,
    commits_some
from (
    select
        run_id, "group", topic, "partition", "offset", 1 as delivered,
        case when accepted then 1 else 0 end as accepted, reading, restarts,
        cast(applied as int) as applied, 0 as has_effect, value_id, consumer, time_us,
        cast(null as bigint) as transaction,
        int_div("offset" + 600000000000000000, 60) as piece
    from read_rows
    union all
    select
        run_id, "group", topic, "partition", "offset", 0, 0, null, null, 0, 1, null, consumer,
        time_us,
        transaction, int_div("offset" + 600000000000000000, 60)
    from committed_effects
) as deliveries_and_effects
semi join odd_pieces using (run_id, "group", topic, "partition", piece)
left join (select run_id, "group", recorded, commits_some from recorded_groups) as recorded_groups
    using (run_id, "group")
group by run_id, "group", topic, "partition", "offset", recorded, commits_some;

create view input_cases as
select
    run_id,
    case when applications > 1 then 'effect_duplicate' else 'reprocess' end as anomaly,
    "group" as consumer_group, topic, "partition", "offset", consumer, value_id, transaction,
    time_us,
    case when applications > 1 and observed and transaction is null then 'at-least-once' end
        as permit,
    applications <= 1 and accepts <= 1 and not again_by_reader as excusable,
    case when applications = 0 and accepts <= 1 and again_by_reader then :fetched_again end as doubt
from (
    select
        odd_inputs.*,
        coalesce(observed, false) as observed,
        coalesce(began_again and restarted and commits_offsets is null, false) as read_from_start,
        not coalesce(began_again and restarted and commits_offsets is null, false)
            and readings > distinct_readings as again_by_reader
    from odd_inputs
    left join begun_again using (run_id, "group", topic, "partition")
    left join committing_groups using (run_id, "group", topic)
    left join audited_runs using (run_id)
) as known_inputs
where
    applications > 1
    or (applications = 1 and deliveries > 1 and not observed)
    or (applications = 0 and recorded is null
        and (read_from_start or again_by_reader or accepts > 1));

-- Groups with effects and commits: the last committed offsets against the results, and against
-- those in their transactions. A copy that was dropped as one lacks no result.
create view commit_cases as
select
    run_id,
    case when has_result then 'result_without_offset' else 'offset_without_result' end as anomaly,
    "group" as consumer_group, topic, "partition", "offset", consumer, value_id, transaction,
    time_us,
    cast(null as boolean) as excusable,
    case when copied and not has_result then 'a copy, perhaps dropped as such' end as doubt,
    committed as other_input_offset
from (
    select
        run_id, "group", topic, "partition", "offset", consumer, value_id, transaction, time_us,
        deliveries,
        applications > 0 as has_result,
        coalesce(committed, cast('-9223372036854775808' as bigint)) as committed,
        coalesce("offset" < committed, false) or accepts > 0 as covered,
        coalesce(observed, false) as observed,
        transaction is not null and coalesce(committed_with_it <= "offset", true) as stray
    from odd_inputs
    left join committed_offsets using (run_id, "group", topic, "partition")
    left join offsets_with_results using (run_id, "group", topic, "partition", transaction)
    left join audited_runs using (run_id)
    where commits_some or (recorded and accepts > 0)
) as compared_inputs
left join (select run_id, topic, value_id, true as copied from records where places > 1) as copies
    using (run_id, topic, value_id)
where
    (has_result and (stray or not covered) and not observed)
    or (not has_result and covered and deliveries > 0);
