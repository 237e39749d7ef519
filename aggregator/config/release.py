"""The section ``release``: the meaning of an uncordon of a quarantined node."""

from typing import Annotated

from pydantic import Field

from aggregator.configfile.section import Section
from aggregator.configfile.values import Duration
from aggregator.quarantine.decide.uncordon import OnUncordon, UncordonRules


class ReleaseConfig(Section):
    """How a node leaves quarantine by an uncordon. Durations are seconds."""

    on_uncordon: Annotated[OnUncordon, Field(strict=False)] = OnUncordon.ASK
    """The meaning of an uncordon where sickbay set the cordon."""
    hold_evictions: Annotated[Duration, Field(ge=0)] = 3600.0
    """With ``ask``: evictions wait so long after an uncordon that does not release the node."""
    trust_uncordoned_by: bool = False
    """The admission policy of deploy/examples/uncordoned-by.yaml is applied."""

    def rules(self) -> UncordonRules:
        return UncordonRules(self.on_uncordon, self.hold_evictions, self.trust_uncordoned_by)
