"""The names of test profiles in the configuration."""

import re
from typing import Annotated

from pydantic import AfterValidator

from aggregator.configfile.values import refuse, show

#: The name of a test profile of the agents, or of a Job.
PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _is_profile_or_empty(value: str) -> str:
    if value and PROFILE.fullmatch(value) is None:
        raise refuse(show(value), 'the name of a test profile, such as "standard", or "" for none')
    return value


def _is_profile(value: str) -> str:
    if PROFILE.fullmatch(value) is None:
        raise refuse(show(value), 'the name of a test profile, such as "quick"')
    return value


#: Empty: no test.
MaybeProfile = Annotated[str, AfterValidator(_is_profile_or_empty)]
Profile = Annotated[str, AfterValidator(_is_profile)]
