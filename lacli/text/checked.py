"""JSON from other programs, checked by pydantic. An error is one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, model_validator

from lacli.errors import UsageError

TYPES = ("str", "int", "float", "bool", "Tool")
"""pydantic's names of types: its errors name one of them if a field may have several."""

Model = TypeVar("Model", bound=BaseModel)


class WithoutNull(BaseModel):
    """An object whose null fields count as left out."""

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: object) -> object:
        return {k: v for k, v in given.items() if v is not None} if isinstance(given, Mapping) else given


def checked(kind: type[Model], found: Any) -> Model:
    """Make a `kind` of a JSON value. Raises UsageError naming the deepest wrong field."""
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        first = max(error.errors(), key=lambda each: len(each["loc"]))
        place = ".".join(str(each) for each in first["loc"] if each not in TYPES and "[" not in str(each))
        words = first["msg"].removeprefix("Value error, ").split(" after validation")[0]
        if first["type"] in ("dict_type", "model_type"):
            words = "a JSON object is needed"
        raise UsageError(f"{place}: {words}" if place else words) from error
