"""Debezium's envelopes as changes: JSON of its MySQL, MariaDB and PostgreSQL connectors."""
