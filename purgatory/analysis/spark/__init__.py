"""Spark itself: its session, its Java, how it starts, how far it is, and how it is interrupted."""
