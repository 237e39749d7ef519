"""What the object's conditions lack. Pure."""

import enum
from dataclasses import dataclass

from aggregator.cluster.port import Quarantine
from aggregator.quarantine.decide.plans.step import NextStep


class PublishStep(enum.StrEnum):
    """The one step."""

    CONDITIONS = "conditions"  # write the conditions anew, for example after a change of the spec


@dataclass(slots=True)
class PublishView:
    """``conditions_old``: the object's conditions are not those of its spec and status."""

    quarantine: Quarantine
    conditions_old: bool = False


def plan_publish(now: PublishView) -> NextStep | None:
    """The write of conditions. It comes last: no other step waits for it."""
    return NextStep(PublishStep.CONDITIONS) if now.conditions_old else None
