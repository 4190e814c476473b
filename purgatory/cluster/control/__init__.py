"""The control of a running cluster, its live feed, and its state."""
