"""Traces and results as tables of a catalog of Spark."""
