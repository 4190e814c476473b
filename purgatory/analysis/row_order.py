"""In which order the rows of a table of results come, whichever engine sorts them."""

from __future__ import annotations

Order = tuple[tuple[str, tuple[str, ...] | None], ...]
"""Columns by which rows are sorted, in turn: by value, or by the value's place among some.

Nulls come first, and so does a value that is none of those.
"""
