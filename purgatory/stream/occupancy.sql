-- The table of results: a window in which nothing was parked has no row.

create view parked_sizes as
select
    run_id,
    purgatory,
    broker,
    timestamp_micros(bucket_start_us) as window_start,
    timestamp_micros(bucket_end_us) as window_end,
    size_mean,
    size_max
from occupancy
where size_max > 0;
