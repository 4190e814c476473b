"""Traces and results by URI: what the file systems of a Spark session reach."""
