"""The names of test profiles in the configuration."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from aggregator.configfile.values import refuse, show

#: The name of a test profile of the agents, or of a Job.
PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: `repair.verify` was a duration before there were tests.
_DURATION = re.compile(r"[0-9.]+(ms|s|m|h|d)?")


def _no_time(value: Any) -> Any:
    """A test profile's name. Raises PydanticCustomError."""
    if isinstance(value, int | float) or (isinstance(value, str) and _DURATION.fullmatch(value)):
        text = (
            'the name of a test profile, such as "standard"; a time after a repair is clear_within'
        )
        raise refuse(show(value), text)
    return value


def _is_profile_or_empty(value: str) -> str:
    if value and PROFILE.fullmatch(value) is None:
        raise refuse(show(value), 'the name of a test profile, such as "standard", or "" for none')
    return value


def _is_profile(value: str) -> str:
    if PROFILE.fullmatch(value) is None:
        raise refuse(show(value), 'the name of a test profile, such as "quick"')
    return value


#: Empty: no test.
MaybeProfile = Annotated[str, BeforeValidator(_no_time), AfterValidator(_is_profile_or_empty)]
Profile = Annotated[str, AfterValidator(_is_profile)]
