"""What all tables of a scenario have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Milliseconds = Annotated[int, Field(ge=0, le=10**12)]
PositiveMilliseconds = Annotated[int, Field(ge=1, le=10**12)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9._-]+$")]
BrokerId = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """A table of the file. Unknown keys and values of another type are errors, never guesses."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
