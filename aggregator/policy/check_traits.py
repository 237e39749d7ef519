"""The traits of the agent's checks, read from checks.yaml, which describes each of them."""

from collections.abc import Mapping
from typing import Any

from aggregator.policy.shipped_yaml import read_shipped_file

TRAITS = ("shared-target", "edge", "network", "nvlink", "verdict")


def checks_with(trait: str, checks: Mapping[str, Any]) -> frozenset[str]:
    """The names of the checks with one of the `TRAITS`; ``checks`` is the content of checks.yaml.

    Raises ValueError for a trait that is none of them.
    """
    if trait not in TRAITS:
        raise ValueError(f"{trait!r} is no trait of a check; expected one of {', '.join(TRAITS)}")
    return frozenset(
        name
        for name, of in checks.items()
        if isinstance(of, dict) and trait in of.get("traits", ())
    )


_CHECKS: Mapping[str, Any] = read_shipped_file("aggregator.policy", "checks.yaml")
#: Their components are targets of several nodes, and no part of any of them.
SHARED_TARGETS = checks_with("shared-target", _CHECKS)
#: Their components are edges between two nodes, which accuse neither end.
EDGES = checks_with("edge", _CHECKS)
#: Their results are evidence of the network.
NETWORK = checks_with("network", _CHECKS)
#: Their results are evidence of the NVLink fabric, whose cause may be at the other end.
NVLINK = checks_with("nvlink", _CHECKS)
#: Their results are the driver's verdicts on a GPU, which name no cause.
VERDICTS = checks_with("verdict", _CHECKS)
