-- The waits of a batch, as occupancy counts them: of each its last :longest_wait_us at most, so that
-- none reaches into a window that is closed. A row that is late for its window of waits, which
-- :watermark_us passed before the batch, doesn't count.

create view parked as
select
    run_id,
    purgatory,
    broker,
    event_us - least(wait_us, :longest_wait_us) as start_us,
    event_us as end_us
from operations
where problem is null
    and outcome <> 'immediate'
    and wait_us > 0
    and event_us - pmod(event_us, :window_us) + :window_us > :watermark_us;
