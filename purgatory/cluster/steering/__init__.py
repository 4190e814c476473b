"""What a test does with a running cluster beside faults: it sees requests, answers them, waits."""

# The events that tests wait for: the keys of their waits.
REQUESTS = "requests"
ANSWERS = "answers"
PARTITIONS = "partitions"
FAULTS = "faults"
