"""Partitions, their leaders and followers, and the requests on them that may wait."""
