"""Whether the definition of quarantines (the CRD) is there: an uninstall must release no node."""

from dataclasses import dataclass

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import PartialObjectMetadata, decode
from aggregator.cluster.kubernetes.transport import METADATA, Transport
from aggregator.cluster.port import NotFound


@dataclass(frozen=True, slots=True)
class DefinitionState:
    """The definition as it is now. ``uid`` is "" where there is none."""

    uid: str
    going: bool  # being deleted, or gone

    def replaces(self, earlier: "DefinitionState") -> bool:
        """Whether another one has replaced ``earlier``, whose objects went with it."""
        return bool(earlier.uid) and self.uid != earlier.uid


async def read_definition(transport: Transport) -> DefinitionState:
    """Read it, never from a cache. Raises ClusterError, except for its absence."""
    try:
        body = await transport.get(paths.THE_DEFINITION, Priority.RELEASE, accept=METADATA)
    except NotFound:
        return DefinitionState(uid="", going=True)
    meta = decode(body, PartialObjectMetadata).metadata
    return DefinitionState(uid=meta.uid, going=meta.deletion_timestamp is not None)
