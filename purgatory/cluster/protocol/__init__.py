"""Kafka's protocol over sockets: connections, requests and responses as bytes, and errors."""
