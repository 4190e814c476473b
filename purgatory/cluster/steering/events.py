"""The events that tests wait for: the keys of their waits."""

REQUESTS = "requests"
ANSWERS = "answers"
PARTITIONS = "partitions"
FAULTS = "faults"
