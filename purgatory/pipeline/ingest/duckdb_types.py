"""The types of a trace's columns, and values of them, in DuckDB's words."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Context, Decimal

from purgatory.pipeline.ingest.column_mapping import Source

_TYPES = {
    "string": "VARCHAR",
    "bigint": "BIGINT",
    "int": "INTEGER",
    "boolean": "BOOLEAN",
    "array<string>": "VARCHAR[]",
}


def duckdb_type(kind: str) -> str:
    """A type in DuckDB's words, from Spark's.

    Raises:
        KeyError: no column of a trace has it.
    """
    return _TYPES[kind]


def literal(value: object) -> str:
    """A value as SQL has it, for a statement without parameters: for these, DuckDB imports pandas.

    Args:
        value: None, a boolean, a whole number, a text whatever is in it, or a list of such.

    Raises:
        TypeError: it is something else.
    """
    match value:
        case None | bool() | int():
            return "NULL" if value is None else str(value)
        case str():
            texts = value.replace("'", "''").split("\0")
            return "(" + " || chr(0) || ".join(f"'{text}'" for text in texts) + ")"
        case list():
            return f"[{', '.join(map(literal, value))}]"
        case _:
            raise TypeError(f"{value!r} can't be written in SQL")


# Numbers in other units, as a mapping has them computed: in the decimals that Spark uses.
#
# A value is a `decimal(29,9)` first; multiplied, a `decimal(38,6)`; rounded half up at each step,
# and nothing where it does not fit.


_CONTEXT = Context(prec=400, rounding=ROUND_HALF_UP, Emin=-999_999, Emax=999_999)
_PRODUCT = Context(prec=39, rounding=ROUND_HALF_UP)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,10})?")
_BLANKS = "".join(map(chr, range(33)))
_SMALLEST = -40
"""A power of ten that rounds to zero."""

BITS = {"int": 31, "bigint": 63}


def scaled(value: object, source: Source, kind: str) -> int | None:
    """A number, or the text of one, in the unit of the schema; None where it can't be.

    Args:
        value: a number, or a text; no boolean.
        source: what it is multiplied by and raised by.
        kind: the type of whole numbers that it becomes.
    """
    number = _decimal(value, 20, 9)
    if number is not None and source.times is not None:
        number = _fitting(_PRODUCT.multiply(number, source.times), 32, 6)
    if number is not None and source.plus is not None:
        whole, digits = (21, 9) if source.times is None else (32, 6)
        number = _fitting(_PRODUCT.add(number, source.plus), whole, digits)
    if number is None:
        return None
    whole_number = int(number.quantize(Decimal(1), context=_CONTEXT))
    bound = 1 << BITS[kind]
    return whole_number if -bound <= whole_number < bound else None


def _decimal(value: object, whole: int, digits: int) -> Decimal | None:
    if isinstance(value, Decimal):
        return _fitting(value, whole, digits)
    text = str(value).strip(_BLANKS)
    if not _NUMBER.fullmatch(text):
        return None
    return _fitting(_CONTEXT.create_decimal(text), whole, digits)


def _fitting(number: Decimal, whole: int, digits: int) -> Decimal | None:
    """A number with some digits after the point; None with more than `whole` before it."""
    if not number.is_finite() or (number and number.adjusted() > whole):
        return None
    if not number or number.adjusted() < _SMALLEST:
        return Decimal(0)
    rounded = number.quantize(Decimal(1).scaleb(-digits), context=_CONTEXT)
    return rounded if abs(rounded) < Decimal(10) ** whole else None
