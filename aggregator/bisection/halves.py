"""Divides a group in two, along the borders of its domains where it has several. Pure."""

from collections.abc import Iterable, Mapping

from aggregator.bisection.model import Group


def in_order(nodes: Iterable[str], domains: Mapping[str, str]) -> Group:
    """The nodes, each domain's side by side, without repetition. Nodes without a domain come last
    in their order.
    """
    once = list(dict.fromkeys(nodes))
    first = {domain: place for place, domain in reversed(list(enumerate(map(domains.get, once))))}
    return tuple(sorted(once, key=lambda node: (node not in domains, first[domains.get(node)])))


def halves(group: Group, domains: Mapping[str, str]) -> tuple[Group, Group]:
    """Two parts of a group of two nodes or more, as equal as its domains allow. A domain is divided
    only where the group is all of one: a fault of a rack must not look like one of its nodes.
    """
    middle = len(group) // 2
    borders = [
        place
        for place in range(1, len(group))
        if domains.get(group[place - 1]) != domains.get(group[place])
    ]
    # Nodes without a domain are no domain: they may be divided anywhere.
    borders += [
        place
        for place in range(1, len(group))
        if group[place - 1] not in domains and group[place] not in domains
    ]
    cut = min(borders, key=lambda place: (abs(place - middle), place), default=middle)
    return group[:cut], group[cut:]
