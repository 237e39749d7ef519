"""Whether the definition of quarantines (the CRD) stands: an uninstall must release nobody."""

from dataclasses import dataclass

from aggregator.kube import paths
from aggregator.kube.limiter import Lane
from aggregator.kube.objects import Bare, decode
from aggregator.kube.transport import METADATA, Transport
from aggregator.quarantine.cluster import NotFound


@dataclass(frozen=True, slots=True)
class DefinitionState:
    """The definition as it is now. ``uid`` is "" where there is none."""

    uid: str
    going: bool  # being deleted, or gone

    def replaces(self, earlier: "DefinitionState") -> bool:
        """Whether another one stands where ``earlier`` stood: its objects went with it."""
        return bool(earlier.uid) and self.uid != earlier.uid


async def read_definition(transport: Transport) -> DefinitionState:
    """Ask for it, never from a cache. Raises ClusterError, but not for its absence."""
    try:
        body = await transport.request(
            "GET",
            paths.THE_DEFINITION,
            kind="customresourcedefinitions",
            lane=Lane.RELEASE,
            accept=METADATA,
        )
    except NotFound:
        return DefinitionState(uid="", going=True)
    meta = decode(body, Bare).metadata
    return DefinitionState(uid=meta.uid, going=meta.deletion_timestamp is not None)
