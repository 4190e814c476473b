"""Logs whose older segments are in a remote tier: what is there, and the reads that wait for it."""
