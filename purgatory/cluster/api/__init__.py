"""Handlers of Kafka's APIs, and the registry that has a row for each."""
