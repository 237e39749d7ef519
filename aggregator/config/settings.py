"""The aggregator's settings: one YAML file, read once, checked whole, frozen.

`load` refuses a bad file with every problem in it, each with its line. Durations are seconds,
percentages 0 to 100, here; in the file "30s" and "5%".
docs/reference/aggregator-configuration.md is made from the docstrings under the fields.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, create_model

from aggregator.alerts.settings import (
    OWNER_LABEL,
    AlertSettings,
    ReceiverConfig,
    RouteConfig,
    SilenceConfig,
)
from aggregator.alerts.settings import cross_field_errors as alerts_contradictions
from aggregator.cluster import registry
from aggregator.cluster.kind import ClusterKind
from aggregator.cluster.port import Action
from aggregator.config import access, certificates, drain, repair, replicas
from aggregator.config.access import AccessConfig
from aggregator.config.certificates import CertificatesConfig
from aggregator.config.drain import DrainConfig
from aggregator.config.pod_namespace import with_namespace
from aggregator.config.repair import RepairConfig
from aggregator.config.replicas import ReplicasConfig
from aggregator.configfile.section import Positive, Section
from aggregator.configfile.values import (
    Address,
    DatabaseUrl,
    DocumentationUrl,
    Duration,
    HostName,
    LabelKey,
    LabelKeys,
    MaybePath,
    Namespace,
    OrdinaryPath,
    PageUrl,
    RulesPath,
    ServiceAccount,
    SharedDatabaseUrl,
    is_loopback,
)
from aggregator.configfile.yaml_source import ConfigError, Document, Key, read, validate
from aggregator.history.engine import DatabaseCredentials
from aggregator.jobs.settings import JobRules
from aggregator.policy.lemons import LemonThresholds
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.common_cause import CommonLimits
from aggregator.quarantine.decide.lost_marks import RestoreRules
from aggregator.quarantine.decide.maintenance import MaintenanceRules
from aggregator.quarantine.decide.node_conditions import NodeConditionRule
from aggregator.quarantine.decide.node_events import EventRules
from aggregator.quarantine.decide.pools import MOST_POOLS, Pool
from aggregator.quarantine.decide.repair import MOST_DOMAINS, RepairMode
from aggregator.quarantine.decide.uncordon import UncordonRules
from aggregator.quarantine.settings import ReconcilerRules, SilenceRules
from aggregator.runtime.cli_flags import NAMESPACE, target_flags
from sickbay.regular_file import MOST, MOST_SECRET, require_regular_file

__all__ = ["Config", "ConfigError", "load"]


@dataclass(frozen=True)
class StoreConfig(DatabaseCredentials):
    """The state of a cluster without Kubernetes in PostgreSQL, which several replicas share."""

    database: SharedDatabaseUrl = ""
    """Kinds ``local`` and ``slurm``: the PostgreSQL that several replicas share
    (docs/replicas.md#without-kubernetes), such as ``postgresql+asyncpg://sickbay@db/sickbay``.
    Empty: the file of the kind's own section.
    """


class ClusterConfig(Section):
    """Where nodes are quarantined."""

    kind: str = registry.ALL[0].name
    """``kubernetes``, ``slurm`` (docs/slurm.md), or ``local`` (docs/local.md): a quarantine is a
    record, and a command if you like.
    """
    kubeconfig: MaybePath = None
    """Empty: the pod's own service account, else ``$KUBECONFIG``, else ``~/.kube/config``. It, and
    what it names, are ordinary files; a start refuses one without a current context, its cluster or
    its user.
    """
    namespace: Namespace = NAMESPACE
    """Where its record and its Lease live. In a pod that has ``$POD_NAMESPACE``, the default is
    that.
    """
    requests_per_second: Positive = 100
    """At most this many requests a second to the API server; requests beyond that wait."""
    burst: Positive = 200
    """At most this many at once."""
    store: StoreConfig = StoreConfig()

    if TYPE_CHECKING:  # the section of each kind that has one

        def __getattr__(self, name: str) -> Any: ...

    @property
    def traits(self) -> ClusterKind:
        """What the kind brings."""
        return next(one for one in registry.ALL if one.name == self.kind)

    @property
    def has_api_server(self) -> bool:
        """Whether an API server has the nodes and the quarantines."""
        return self.traits.has_api_server

    @property
    def settings(self) -> Any:
        """The keys that the kind reads."""
        return self if self.traits.section is None else getattr(self, self.kind)

    @property
    def shared_store(self) -> StoreConfig | None:
        """The database with the quarantines, or None where an API server or a file has them."""
        return self.store if self.traits.keeps_state and self.store.database else None

    @property
    def file(self) -> tuple[tuple[str, str, str], Path] | None:
        """The file with the quarantines and its key, or None where an API server or a database has
        them.
        """
        if not self.traits.keeps_state or self.shared_store is not None:
            return None
        return ("cluster", self.kind, "database"), self.settings.database

    @property
    def how(self) -> str:
        """The further options of a person's command to act on this cluster; begins with a space."""
        if self.file is not None:
            return target_flags(local=str(self.file[1].absolute()))
        if self.shared_store is not None:
            return target_flags(local=self.store.database)
        return target_flags(namespace=self.namespace)


def with_sections(kinds: Sequence[ClusterKind]) -> type[ClusterConfig]:
    """The section ``cluster`` with these kinds, each with its own section below."""
    sections: dict[str, Any] = {
        one.name: (one.section, one.section()) for one in kinds if one.section is not None
    }
    names: Any = Literal[tuple(one.name for one in kinds)]
    return create_model(
        "ClusterConfig", __base__=ClusterConfig, kind=(names, kinds[0].name), **sections
    )


if not TYPE_CHECKING:
    ClusterConfig = with_sections(registry.ALL)


class TlsConfig(Section):
    """The certificate of both listeners, read again when it rotates."""

    cert_file: OrdinaryPath
    """The certificate of both listeners (PEM, with its chain). Read again when it changes. An
    expired certificate makes the aggregator not ready. Without ``tls`` the aggregator makes
    certificates itself (docs/certificates.md), if it runs on Kubernetes and other machines can
    reach a listener; else the listeners are plaintext, and only on loopback or a unix socket.
    """
    key_file: OrdinaryPath
    """Its key (PEM, no passphrase)."""
    client_ca_file: MaybePath = None
    """The authority that signs the nodes' certificates; for ``identity.kind: certificate``."""


class ListenConfig(Section):
    """Addresses: ``host:port``, ``[v6]:port`` or ``unix:/path``."""

    grpc: Address = "0.0.0.0:8443"
    """Where agents connect."""
    web: Address = "0.0.0.0:8080"
    """The page, the JSON API, the metrics."""
    hosts: Annotated[tuple[HostName, ...], Field(strict=False)] = ()
    """Names by which people request the page, for a plaintext listener on loopback. Other
    names than these and ``localhost`` get 421; addresses are always answered.
    """
    tls: TlsConfig | None = None
    insecure_plaintext: bool = False
    """Allow plaintext to other machines. Anyone on the network can then read tokens and report for
    nodes.
    """

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can reach one of the listeners."""
        return not (is_loopback(self.grpc) and is_loopback(self.web))


class IdentityConfig(Section):
    """How an agent proves which node it reports for."""

    kind: Literal["token", "certificate", "insecure-trust-hello"] = "token"
    """How an agent proves its node: docs/aggregator.md#agents-credentials."""
    audience: Annotated[str, Field(min_length=1)] = "sickbay"
    """The audience that tokens must have."""
    service_account: ServiceAccount = "sickbay:sickbay-agent"
    """``NAMESPACE:NAME`` of the agents' service account; by default in ``cluster.namespace``. No
    other account's token counts.
    """
    issuer: str = ""
    """The issuer that tokens must have. Empty: the one in the API server's discovery document."""
    keys_cache: OrdinaryPath = Path("/var/lib/sickbay-aggregator/jwks.json")
    """The cluster's public keys are kept here, for a start while the API server is away. Next to
    them lies ``probe-key``, the secret by which probes (docs/network.md#which-edges-count) are
    assigned to nodes.
    """


@dataclass(frozen=True, slots=True)
class AgentsConfig(SilenceRules):
    """How agents are received. Durations are seconds."""

    heartbeat: Annotated[Duration, Field(ge=1)] = 10.0
    """How often an agent sends a heartbeat."""


@dataclass(frozen=True)
class LimitsConfig(CommonLimits, Limits):
    """Admission, and what is a common cause."""

    domain_labels: Annotated[LabelKeys, Field(max_length=MOST_DOMAINS - 1)] = (
        "network.topology.nvidia.com/leaf",
        "topology.kubernetes.io/rack",
    )
    """Node labels that name a place: a rack, a leaf switch."""


class PolicyConfig(Section):
    """A site's rules on top of the shipped ones."""

    file: RulesPath | None = None
    """A site's rules on top of the shipped ones. See policy (docs/policy.md)."""


@dataclass(frozen=True)
class HistoryConfig(DatabaseCredentials):
    """Where history is kept, and for how long (seconds). The credentials are PostgreSQL's."""

    database: DatabaseUrl = "sqlite:////var/lib/sickbay-aggregator/history.db"
    """``sqlite:///`` and the absolute path of a file, or
    ``postgresql+asyncpg://USER@HOST/DATABASE``. See history (docs/history.md).
    """
    keep: Annotated[Duration, Field(ge=3600)] = 28 * 86400.0
    """How long history is kept. An hour at least."""
    most_rows: Annotated[int, Field(ge=10_000)] = 10_000_000
    """At most this many transitions, and this many rows of agents' evidence: rows beyond that are
    deleted, oldest first.
    """

    @property
    def is_file(self) -> bool:
        """SQLite."""
        return self.database.startswith("sqlite:")


class AlertsConfig(Section):
    """The receivers of alerts, and the file in which undelivered alerts wait."""

    outbox: OrdinaryPath = Path("/var/lib/sickbay-aggregator/outbox.db")
    """Where alerts wait until they are delivered. See alerts (docs/alerts.md)."""
    shared: bool = True
    """With history in PostgreSQL, alerts wait there too, so that the next controller sends them
    when one dies; ``false``: in the file of each replica. See alerts
    (docs/alerts.md#several-replicas).
    """
    page: PageUrl = ""
    """The status page's URL, for links in messages."""
    owner_label: LabelKey = OWNER_LABEL
    """The label or annotation of a namespace that names the owner of its pods
    (docs/alerts.md#owners-of-affected-jobs).
    """
    receivers: Annotated[tuple[ReceiverConfig, ...], Field(strict=False)] = ()
    routes: Annotated[tuple[RouteConfig, ...], Field(strict=False)] = ()
    silences: Annotated[tuple[SilenceConfig, ...], Field(strict=False)] = ()

    @property
    def settings(self) -> AlertSettings:
        """All but the place of the outbox."""
        return AlertSettings(self.receivers, self.routes, self.silences, self.page)


#: The keys that can take a bound away (removed_bounds.py).
RemovableBound = Literal[
    "limits.concurrent",
    "limits.new_per_window",
    "limits.common_cause_percent",
    "limits.cooldown",
    "limits.quorum_percent",
    "repair.concurrent_percent",
]


class Config(Section):
    """The whole configuration of the aggregator."""

    mode: Annotated[Action, Field(strict=False)] = Action.OBSERVE
    """The most that it may do. ``observe``: write nothing, show what it would do. ``cordon``: taint
    and cordon. ``drain``: evict as well. A quarantine that a person makes is carried out in every
    mode, its evictions in ``drain`` alone.
    """
    pools: Annotated[tuple[Pool, ...], Field(strict=False, max_length=MOST_POOLS)] = ()
    """Nodes by their labels, with a mode and limits of their own; the first that selects a node."""
    cluster: ClusterConfig = ClusterConfig()
    listen: ListenConfig = ListenConfig()
    identity: IdentityConfig = IdentityConfig()
    replicas: ReplicasConfig = ReplicasConfig()
    access: AccessConfig = AccessConfig()
    certificates: CertificatesConfig = CertificatesConfig()
    agents: AgentsConfig = AgentsConfig()
    limits: LimitsConfig = LimitsConfig()
    drain: DrainConfig = DrainConfig()
    release: UncordonRules = UncordonRules()
    repair: RepairConfig = RepairConfig()
    marks: RestoreRules = RestoreRules()
    maintenance: MaintenanceRules = MaintenanceRules()
    conditions: Annotated[tuple[NodeConditionRule, ...], Field(strict=False)] = ()
    events: EventRules = EventRules()
    reconcilers: ReconcilerRules = ReconcilerRules()
    policy: PolicyConfig = PolicyConfig()
    history: HistoryConfig = HistoryConfig()
    lemons: LemonThresholds = LemonThresholds()
    jobs: JobRules = JobRules()
    alerts: AlertsConfig = AlertsConfig()
    documentation_url: DocumentationUrl = ""
    """The address of this documentation: the site (docs/README.md) of your version or the tree on a
    code host. Alerts and the page link to the section of each alert and hold behind it; empty: they
    name its file, such as ``docs/holds.md#stop``.
    """
    accept_removed_bounds: Annotated[tuple[RemovableBound, ...], Field(strict=False)] = ()
    """Bounds (docs/limits.md) that the file takes away on purpose, such as ``limits.cooldown``;
    ``config check`` refuses the others.
    """
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """``debug``, ``info``, ``warning`` or ``error``."""

    @property
    def alert_settings(self) -> AlertSettings:
        """All that alerts are sent by."""
        return replace(self.alerts.settings, documentation_url=self.documentation_url)

    @property
    def makes_certificates(self) -> bool:
        """Whether the aggregator makes its certificates itself."""
        if self.certificates.automatic is not None:
            return self.certificates.automatic
        listen = self.listen
        return (
            self.cluster.has_api_server
            and listen.tls is None
            and not listen.insecure_plaintext
            and listen.is_exposed
        )

    @property
    def has_tls(self) -> bool:
        """Whether the listeners have a certificate, a file's or its own."""
        return self.listen.tls is not None or self.makes_certificates

    def with_tls(self, *, cert_file: Path, key_file: Path, ca_file: Path) -> Self:
        """The same with these files as its certificate and as the CA of the replicas."""
        tls = TlsConfig(cert_file=cert_file, key_file=key_file)
        return self.model_copy(
            update={
                "listen": self.listen.model_copy(update={"tls": tls}),
                "replicas": self.replicas.model_copy(update={"ca_file": ca_file}),
            }
        )


def load(
    path: Path,
    *,
    root: Path | None = Path("/"),
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """The settings in the file at ``path``, or `ConfigError` with all that is wrong with them.

    Relative paths are relative to the file's folder. The files that it names must exist below
    ``root``; None reads none of them, for a machine that has none. ``environ`` gives POD_NAMESPACE.
    """
    document = with_namespace(read(path), environ)
    config, problems = validate(document, Config)
    spoilt = frozenset(problem.section for problem in problems)
    if config is None:
        # A problem in one section must not hide a problem in another: the rest is checked with this
        # section at its defaults, and no problem is reported that would rest on them.
        known = Config.model_fields.keys() - spoilt
        data = {name: value for name, value in document.data.items() if name in known}
        config, _ = validate(Document(document.name, data, document.lines), Config)
        assert config is not None
    for finding in (
        *_contradictions(config),
        *(() if root is None else (*_missing_files(config, root), *_no_databases(config, root))),
    ):
        if spoilt.isdisjoint(finding.rests_on):
            problems.append(document.problem(finding.key, finding.text))
    if problems:
        raise ConfigError(str(path), problems)
    return config


@dataclass(frozen=True, slots=True)
class _Finding:
    key: Key
    text: str
    rests_on: frozenset[str]


def _finding(key: Key, text: str, *also: str) -> _Finding:
    return _Finding(key, text, frozenset((str(key[0]), *also)))


def _contradictions(config: Config) -> Iterator[_Finding]:
    """Settings that are valid alone but not together."""
    if not config.makes_certificates:
        yield from _exposed(config.listen)
    yield from _same_port(config.listen)
    yield from _unprovable(config)
    yield from _shared(config)
    for errors, also in (
        (drain.cross_field_errors, ()),
        (repair.cross_field_errors, ("cluster",)),
        (certificates.cross_field_errors, ("cluster", "listen", "replicas", "certificates")),
        (access.cross_field_errors, ("cluster", "listen", "certificates")),
        (replicas.cross_field_errors, ("cluster", "listen")),
    ):
        for key, text in errors(config):
            yield _finding(key, text, *also)
    for key, text in alerts_contradictions(
        config.alerts.settings, kubernetes=config.cluster.has_api_server
    ):
        yield _finding(("alerts", *key), text)
    if config.drain.namespaces and not config.cluster.has_api_server:
        # "*" would match the namespace of the command `drain`, which then never ran.
        text = f'namespaces have pods, and cluster.kind is "{config.cluster.kind}"; expected none'
        yield _finding(("drain", "namespaces"), text, "cluster")
    yield from _left_out(config)
    yield from _unwritable(config)
    yield from _unselectable(config)
    yield from _cluster(config)
    if config.agents.silent_after < 2 * config.agents.heartbeat:
        text = (
            f"{config.agents.silent_after:g}s is less than two heartbeats, so that one late "
            f'heartbeat is silence; expected at least "{2 * config.agents.heartbeat:g}s"'
        )
        yield _finding(("agents", "silent_after"), text)


def _left_out(config: Config) -> Iterator[_Finding]:
    """Settings that need a reconciler that is left out."""
    if not config.reconcilers.drain:
        modes: list[tuple[Key, Action | None]] = [(("mode",), config.mode)]
        modes += [(("pools", at, "mode"), one.mode) for at, one in enumerate(config.pools)]
        text = '"drain" evicts pods, and reconcilers.drain is false; expected "cordon" or "observe"'
        for key, mode in modes:
            if mode is Action.DRAIN:
                yield _finding(key, text, "reconcilers")
    if not config.reconcilers.operations and config.repair.mode is not RepairMode.OFF:
        text = f'"{config.repair.mode.value}" needs reconcilers.operations, which is false'
        yield _finding(("repair", "mode"), f'{text}; expected "off"', "reconcilers")


def _cluster(config: Config) -> Iterator[_Finding]:
    """Each kind's own, and credentials of a database that there is not."""
    for one in registry.ALL:
        for key, text in one.contradictions(config.cluster):
            yield _finding(("cluster", *key), text)
    store = config.cluster.store
    for name in ("password_file", "ca_file", "insecure_plaintext"):
        if config.history.is_file and getattr(config.history, name):
            text = "history.database is a file; expected this with PostgreSQL alone"
            yield _finding(("history", name), text)
        if not store.database and getattr(store, name):
            text = "given without cluster.store.database; expected both"
            yield _finding(("cluster", "store", name), text)


def _unwritable(config: Config) -> Iterator[_Finding]:
    """Conditions that could not be written, or that two entries would write."""
    none = "" if config.cluster.has_api_server else "only Kubernetes has conditions"
    names = [one.type for one in config.conditions]
    again = "has an entry already; expected one entry with all of its rules"
    yield from _unusable(config, "conditions", "type", names, none=none, again=again)


def _unselectable(config: Config) -> Iterator[_Finding]:
    """Pools that could select no node, or that share a name."""
    none = "" if config.cluster.traits.has_labels else "no node of it has labels"
    names = [one.name for one in config.pools]
    again = "is the name of an earlier pool; expected each name once"
    yield from _unusable(config, "pools", "name", names, none=none, again=again)


def _unusable(
    config: Config, section: str, key: str, names: Sequence[str], *, none: str, again: str
) -> Iterator[_Finding]:
    """Entries of which the cluster can have none, and names that come ``again``."""
    for number, name in enumerate(names):
        if none:
            text = f'{none}, and cluster.kind is "{config.cluster.kind}"; expected none'
            yield _finding((section, number), text, "cluster")
        if name in names[:number]:
            yield _finding((section, number, key), f'"{name}" {again}')


def _exposed(listen: ListenConfig) -> Iterator[_Finding]:
    if listen.tls is None and not listen.insecure_plaintext:
        for name, address in (("grpc", listen.grpc), ("web", listen.web)):
            if not is_loopback(address):
                text = (
                    f'"{address}" can be reached from other machines, in plaintext; expected '
                    "listen.tls, an address on loopback, or listen.insecure_plaintext: true"
                )
                yield _finding(("listen", name), text)


def _same_port(listen: ListenConfig) -> Iterator[_Finding]:
    if listen.grpc == listen.web and not listen.grpc.endswith(":0"):
        yield _finding(("listen", "web"), "the same as listen.grpc; expected another port")


def _shared(config: Config) -> Iterator[_Finding]:
    """Databases that would be one file: each is written as if it had the file to itself."""
    history = history_file(config)
    files: dict[str, str] = {}
    if config.cluster.file is not None:
        own, database = config.cluster.file
        files[str(database)] = ".".join(own)
    for key, path in (
        (("history", "database"), history),
        (("alerts", "outbox"), str(config.alerts.outbox)),
    ):
        if path in files:
            text = f"the same file as {files[path]}; expected one of its own"
            yield _finding(key, text, files[path].partition(".")[0])
        files.setdefault(path, ".".join(key))


def history_file(config: Config) -> str:
    """The history's file, or empty where it is in a server."""
    return config.history.database.partition("///")[2] if config.history.is_file else ""


def _unprovable(config: Config) -> Iterator[_Finding]:
    """Identities that could not be proven, or that any client could claim."""
    kind, listen, key = config.identity.kind, config.listen, ("identity", "kind")
    if kind == "token" and not config.cluster.has_api_server:
        text = (
            '"token" needs the keys of a Kubernetes API server, and cluster.kind is '
            f'"{config.cluster.kind}"; '
            'expected "certificate" (or "insecure-trust-hello" for a trial on loopback)'
        )
        yield _finding(key, text, "cluster")
    if kind == "certificate" and (listen.tls is None or listen.tls.client_ca_file is None):
        text = '"certificate" needs the CA that signs; expected listen.tls.client_ca_file'
        yield _finding(key, text, "listen")
    if kind == "insecure-trust-hello" and not (
        is_loopback(listen.grpc) or listen.insecure_plaintext
    ):
        text = (
            f'"{kind}" lets every client that reaches "{listen.grpc}" report for any node; '
            'expected "token" or "certificate", listen.grpc on loopback, or '
            "listen.insecure_plaintext: true"
        )
        yield _finding(key, text, "listen")


_SECRETS = {
    "bearer_token_file",
    "client_secret_file",
    "password_file",
    "routing_key_file",
    "secret_file",
    "token_file",
    "url_file",
}


def _missing_files(config: Config, root: Path) -> Iterator[_Finding]:
    for key, file in _files(config):
        try:
            with require_regular_file(root / file.relative_to("/"), most=MOST).open("rb") as opened:
                begin = opened.read(MOST_SECRET + 1) if key[-1] in _SECRETS else b"unread"
        except OSError as error:
            text = f"{file} can't be read: {error.strerror}; expected a readable file"
            yield _finding(key, text)
            continue
        if not begin.strip():  # an unsigned alert is not sent: no alert would ever leave
            yield _finding(key, f"{file} is empty; expected a file with a secret in it")
        if key[-1] == "secret_file" and len(begin.rstrip()) > MOST_SECRET:
            text = f"{file} is longer than {MOST_SECRET} bytes; expected the shared secret"
            yield _finding(key, text)


def _no_databases(config: Config, root: Path) -> Iterator[_Finding]:
    """Paths of the aggregator's own databases where something lies that is no file."""
    for key, file in _kept(config):
        try:
            require_regular_file(root / file.relative_to("/"))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # not made yet, or not this user's to see: the error on opening reports it
        except OSError as error:
            text = f"{file} can't be used: {error.strerror}; expected a file, or none yet"
            yield _finding(key, text)


def _kept(config: Config) -> Iterator[tuple[Key, Path]]:
    if config.cluster.file is not None:
        yield config.cluster.file
    yield ("identity", "keys_cache"), config.identity.keys_cache
    yield ("alerts", "outbox"), config.alerts.outbox
    history = history_file(config)
    if history.startswith("/"):
        yield ("history", "database"), Path(history)


#: Keys of what the aggregator writes itself, or hands on to another program.
_NOT_READ = {"keys_cache", "outbox", "folder", "database", "programs", "conf"}


def _files(config: Config) -> Iterator[tuple[Key, Path]]:
    """Every file that must exist before the start."""
    for key, path in _paths(config, ()):
        unused = key == ("replicas", "token_file") and not config.replicas.on
        if key[-1] not in _NOT_READ and not unused:
            yield key, path


def _paths(value: object, key: Key) -> Iterator[tuple[Key, Path]]:
    """Each path in a section, by its key."""
    parts: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, Path):
        yield key, value
    elif isinstance(value, tuple):
        parts = enumerate(value)
    elif isinstance(value, Section):
        parts = dict(value).items()
    elif is_dataclass(value):
        parts = ((one.name, getattr(value, one.name)) for one in fields(value))
    for name, part in parts:
        yield from _paths(part, (*key, name))
