"""The version of the cluster, and whether sickbay works with it."""

import logging
import re

import msgspec

from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import decode
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.port import ClusterTooOld, NotFound, Refused

log = logging.getLogger("sickbay.kubernetes")

#: docs/install.md#kubernetes-versions has what is used from which version.
OLDEST = (1, 30)
_PATH = "/version"
_NUMBER = re.compile(r"v?(\d+)\.(\d+)")


class _Info(msgspec.Struct, frozen=True):
    """version.Info of k8s.io/apimachinery, as much of it as is used."""

    gitVersion: str = ""  # noqa: N815 - the API's name


async def check_version(transport: Transport) -> str:
    """The API server's version; empty where it can't be known, which is logged.

    Raises ClusterTooOld, or ClusterError where there was no answer.
    """
    try:
        body = await transport.get(_PATH, Priority.RECORD)
        text = decode(body, _Info).gitVersion
    except (Refused, NotFound) as error:
        log.warning(
            "the API server does not report its version, so that it is not known to be new enough",
            extra={"path": _PATH, "oldest": describe(OLDEST), "error": str(error)},
        )
        return ""
    found = _NUMBER.match(text)
    if found is not None and (int(found[1]), int(found[2])) < OLDEST:
        raise ClusterTooOld(
            f"the cluster runs Kubernetes {text}, and sickbay needs {describe(OLDEST)} or later: "
            "upgrade the cluster (docs/install.md has what is used from which version)"
        )
    return text


def describe(version: tuple[int, int]) -> str:
    """As people write it: "1.30"."""
    return f"{version[0]}.{version[1]}"
