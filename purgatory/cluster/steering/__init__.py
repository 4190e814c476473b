"""What a test does with a running cluster beside faults: it sees requests, answers them, waits."""
