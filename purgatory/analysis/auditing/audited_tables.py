"""The tables of a trace that an audit reads."""

from __future__ import annotations

OPTIONAL = ("effects", "commits", "transactions")
"""Those that a trace may lack."""

AUDITED = ("sends", "reads", *OPTIONAL)
