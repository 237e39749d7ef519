"""The names of test profiles in the configuration."""

from typing import Annotated

from aggregator.configfile.values import shaped

#: The name of a test profile of the agents, or of a Job.
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
#: Empty: no test.
MaybeProfile = Annotated[
    str, shaped(f"({_NAME})?", 'the name of a test profile, such as "standard", or "" for none')
]
Profile = Annotated[str, shaped(_NAME, 'the name of a test profile, such as "quick"')]
