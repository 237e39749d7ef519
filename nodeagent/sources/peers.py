"""The nodes that the aggregator requests this one to probe. No node is probed without a request."""

import ipaddress
from collections.abc import Iterable

__all__ = ["MOST", "Peers"]

#: A bound on any list of the aggregator: this number reaches every node, and all together are a
#: trickle.
MOST = 8


class Peers:
    """Their addresses, as last named. They stay while no aggregator is there to name others."""

    def __init__(self) -> None:
        self._addresses: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    def named(self, addresses: Iterable[str]) -> None:
        """These from now on: the first ``MOST`` that are addresses of single, other machines."""
        usable = dict.fromkeys(address for address in addresses if _is_machine(address))
        self._addresses = tuple(usable)[:MOST]


def _is_machine(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    special = address.is_loopback or address.is_multicast or address.is_unspecified
    # A link-local address has no meaning without an interface, and the broadcast address is all.
    return not (special or address.is_link_local or str(address) == "255.255.255.255")
