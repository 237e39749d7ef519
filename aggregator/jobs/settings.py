"""The section ``jobs``: a site's own markers, and the defaults of the formulas."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import Duration, LabelKeys


@dataclass(frozen=True, slots=True)
class JobRules(SectionDataclass):
    """``job_keys`` and ``team_keys``: labels or annotations of pods that name the job and the team,
    read before the shipped ones. Durations are seconds, for pods that state none:
    ``checkpoint_interval`` from one checkpoint of a job to the next, ``restart_time`` from the stop
    of a job to its first step.
    """

    job_keys: LabelKeys = ()
    """Labels or annotations of pods that name a job (docs/jobs.md), before the shipped ones."""
    team_keys: LabelKeys = ()
    """Those that name its team."""
    checkpoint_interval: Annotated[Duration, Field(ge=1, le=7 * 86400)] = 3600.0
    """Of jobs that state none: from one checkpoint to the next."""
    restart_time: Annotated[Duration, Field(ge=1, le=86400)] = 600.0
    """Of jobs that state none: from a stop to the first step."""
