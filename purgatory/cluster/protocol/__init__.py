"""Kafka's protocol over sockets: connections, their turns, and requests and answers as bytes."""
