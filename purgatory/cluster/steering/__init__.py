"""Steering of a running cluster by tests beside faults: they see requests, answer them, wait."""

# The events that tests wait for: the keys of their waits.
REQUESTS = "requests"
ANSWERS = "answers"
PARTITIONS = "partitions"
FAULTS = "faults"
