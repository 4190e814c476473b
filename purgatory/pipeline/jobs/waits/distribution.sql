-- A bin of waits with a logarithmic axis. A wait that rounds to 0 us counts as one of 1 us, as that
-- axis has no place for it. A bound such as 10^(1/5) is no whole number, so a wait is compared with
-- the one above it.
create view binned_operations as
select run_id, purgatory, outcome,
    cast(floor(log10(greatest(wait_us, 1)) * :bins_per_power + 1e-9) as int) as bin
from chosen_operations
where outcome not in ('immediate', 'pending');

create view bin_counts as
select run_id, purgatory, outcome, bin, count(*) as operations
from binned_operations
group by run_id, purgatory, outcome, bin;

-- The operations with waits from `low_us` to below `high_us`.
create table distribution as
select run_id, purgatory, outcome, low_us, high_us, operations
from bin_counts
join bin_bounds using (bin);
