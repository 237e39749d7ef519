"""Bounds that a configuration takes away, and labels that a node could write itself.

Together they let one wrong rule drain the fleet. `config check` refuses a bound that is removed and
not named in ``accept_removed_bounds``; `run` logs it, because a restart must not end the protection
of a fleet.
"""

from collections.abc import Iterator

from aggregator.cluster.port import Action
from aggregator.config.settings import Config
from aggregator.configfile.yaml_source import Key
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.pools import Pools

#: Above these a number of nodes is no bound of a fleet: the largest for which sickbay is built.
_FLEET = 10_000
_SHORTEST_WINDOW = 60.0
#: Labels of Kubernetes that a kubelet may set on its own Node; others of its domains it may not.
_KUBELETS_OWN = frozenset(
    {
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
    }
)
_KUBELETS_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io", "beta.kubernetes.io")


def removed_bounds(config: Config) -> Iterator[tuple[Key, str]]:
    """The key of each bound that the file takes away, with the effect; none where nothing acts."""
    if Pools(config.pools, config.mode).strongest is Action.OBSERVE:
        return
    limits, shipped = config.limits, Limits()
    if limits.concurrent >= _FLEET and limits.concurrent_percent >= 100:
        text = (
            f"{limits.concurrent} nodes and {limits.concurrent_percent:g} % bound no fleet: "
            "every node may be in quarantine at once; shipped: "
            f"{shipped.concurrent}, and {shipped.concurrent_percent:g}%"
        )
        yield ("limits", "concurrent"), text
    rate_off = limits.new_per_window_percent >= 100 and limits.new_per_window > shipped.concurrent
    if rate_off or limits.window < _SHORTEST_WINDOW:
        text = (
            f"{limits.new_per_window} nodes and {limits.new_per_window_percent:g} % within "
            f"{limits.window:g} s bound no rate; shipped: {shipped.new_per_window}, and "
            f"{shipped.new_per_window_percent:g}%, within {shipped.window / 60:g}m"
        )
        yield ("limits", "new_per_window"), text
    if limits.common_cause_percent >= 100 and limits.common_cause_nodes >= _FLEET:
        text = "no fault of many nodes is one cause: a wrong check quarantines all of them"
        yield ("limits", "common_cause_percent"), text
    if not limits.cooldown:
        yield ("limits", "cooldown"), "0s: after the rate or a common cause the next batch follows"
    if not limits.quorum_percent:
        text = "0%: right after a start nodes are quarantined by the reports of a few agents"
        yield ("limits", "quorum_percent"), text
    if config.repair.mode == "repair" and config.repair.concurrent_percent >= 100:
        text = f"{config.repair.concurrent_percent:g} %: every node may be under repair at once"
        yield ("repair", "concurrent_percent"), text


def unaccepted_bounds(config: Config) -> Iterator[tuple[Key, str]]:
    """Those of them that the file does not accept by name."""
    for key, text in removed_bounds(config):
        name = ".".join(map(str, key))
        if name not in config.accept_removed_bounds:
            yield key, f"{text}; expected a bound, or {name} in accept_removed_bounds"


def labels_of_kubelets(config: Config) -> Iterator[tuple[Key, str]]:
    """The label keys that decide pools, places and limits, and that root on a node could set."""
    for number, pool in enumerate(config.pools):
        for one in pool.selector.requirements():
            if _may_be_set(one.key):
                yield ("pools", number, "selector"), _warning(one.key, "its pool")
    limits = config.limits
    if limits.pool_label and _may_be_set(limits.pool_label):
        yield ("limits", "pool_label"), _warning(limits.pool_label, "its pool")
    shipped = type(limits)()
    if limits.domain_labels != shipped.domain_labels:
        for key in limits.domain_labels:
            if _may_be_set(key):
                yield ("limits", "domain_labels"), _warning(key, "its place")
    clique = limits.clique_label
    if clique and clique != shipped.clique_label and _may_be_set(clique):
        yield ("limits", "clique_label"), _warning(clique, "its NVLink clique")


def _may_be_set(key: str) -> bool:
    """Whether NodeRestriction lets a kubelet set this label on its own Node."""
    domain = key.partition("/")[0] if "/" in key else ""
    if _is_within(domain, "node-restriction.kubernetes.io"):
        return False
    if _is_within(domain, "kubernetes.io", "k8s.io"):
        return key in _KUBELETS_OWN or _is_within(domain, *_KUBELETS_DOMAINS)
    return True


def _is_within(domain: str, *domains: str) -> bool:
    """Whether it is one of them, or below one: mykubernetes.io is not Kubernetes' own."""
    return any(domain == one or domain.endswith(f".{one}") for one in domains)


def _warning(key: str, what: str) -> str:
    return (
        f"a kubelet may set the label {key} on its own Node: root on a node chooses {what}; "
        "a key of the domain node-restriction.kubernetes.io is an administrator's alone "
        "(docs/security.md)"
    )
