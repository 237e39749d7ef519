"""The base of every section of the configuration file."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

Strings = Annotated[tuple[str, ...], Field(strict=False)]
Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Unknown keys are refused, and no type is guessed: the text "5" is no number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_the_default(cls, data: Any) -> Any:
        """A key without a value (its lines commented out, say) is treated as absent."""
        if not isinstance(data, dict):
            return data
        known = cls.model_fields
        return {k: v for k, v in data.items() if v is not None or k not in known}
