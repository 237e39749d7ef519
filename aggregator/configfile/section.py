"""The bases of every section of the configuration file: a model, or a dataclass.

A section that the code uses as it is written is a dataclass: the code that uses it defines it, and
makes it without a file, unchecked, in its tests.
"""

from dataclasses import fields
from typing import Annotated, Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

Strings = Annotated[tuple[str, ...], Field(strict=False)]
Positive = Annotated[int, Field(ge=1)]

_CONFIG = ConfigDict(extra="forbid", strict=True)


class Section(BaseModel):
    """Unknown keys are refused, and no type is guessed: the text "5" is no number."""

    model_config = ConfigDict(**_CONFIG, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_the_default(cls, data: Any) -> Any:
        return _without_absent(data, cls.model_fields)


class SectionDataclass:
    """The base of a frozen dataclass that is read like a `Section`."""

    __slots__ = ()
    __pydantic_config__ = _CONFIG
    #: Keys that are refused without a value, as their default would be taken for another wish.
    __never_empty__: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def nothing_is_the_default(data: Any) -> Any:
            known = {field.name for field in fields(cls)} - cls.__never_empty__  # type: ignore[arg-type]
            return _without_absent(data, known)

        schema = handler(source)
        # Strict fields, in a section that the file gives as a mapping and no instance.
        cast("dict[str, Any]", handler.resolve_ref_schema(schema))["strict"] = False
        return core_schema.no_info_before_validator_function(nothing_is_the_default, schema)


def _without_absent(data: Any, known: Any) -> Any:
    """A key without a value (for example with its lines commented out) is treated as absent."""
    if not isinstance(data, dict):
        return data
    return {k: v for k, v in data.items() if v is not None or k not in known}
