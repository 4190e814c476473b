"""A replica's log: record batches in segments, producers' state, leader epochs, compaction."""
