"""The aggregator's settings: one YAML file, read once, checked whole, frozen.

`load` refuses a bad file with every problem in it, each with its line. Durations are seconds,
percentages 0 to 100, here; in the file "30s" and "5%". docs/aggregator.md is the reference for
people, deploy/aggregator.yaml an example.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from aggregator.alerts.notifier import WebhookConfig
from aggregator.cluster.local.cluster import Commands
from aggregator.cluster.port import Action
from aggregator.config.drain import DrainConfig
from aggregator.config.drain import cross_field_errors as drain_contradictions
from aggregator.config.shards import ShardsConfig
from aggregator.config.shards import cross_field_errors as shards_contradictions
from aggregator.configfile.regular_file import MOST, require_regular_file
from aggregator.configfile.section import Positive, Section
from aggregator.configfile.values import (
    Address,
    DatabaseUrl,
    Duration,
    HostName,
    LabelKeys,
    MaybePath,
    Namespace,
    OrdinaryPath,
    RulesPath,
    ServiceAccount,
    is_loopback,
)
from aggregator.configfile.yaml_source import ConfigError, Document, Key, read, validate
from aggregator.history.engine import DatabaseCredentials
from aggregator.policy.lemons import LemonThresholds
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.cause_search import CommonLimits
from aggregator.quarantine.decide.lost_marks import RestoreRules
from aggregator.quarantine.decide.uncordon import UncordonRules
from aggregator.quarantine.settings import SilenceRules
from aggregator.runtime.cli_flags import NAMESPACE, target_flags

__all__ = ["Config", "ConfigError", "load"]


class LocalConfig(Section):
    """The cluster without Kubernetes."""

    database: OrdinaryPath = Path("/var/lib/sickbay-aggregator/cluster.db")
    commands: Commands = Commands()
    command_timeout: Annotated[Duration, Field(ge=1)] = 30.0


class ClusterConfig(Section):
    """Where nodes are quarantined."""

    kind: Literal["kubernetes", "local"] = "kubernetes"
    kubeconfig: MaybePath = None
    """None: in-cluster, else the usual places."""
    namespace: Namespace = NAMESPACE
    requests_per_second: Positive = 100
    burst: Positive = 200
    local: LocalConfig = LocalConfig()

    @property
    def how(self) -> str:
        """The further options of a person's command to act on this cluster; begins with a space."""
        if self.kind == "local":
            return target_flags(local=self.local.database.absolute())
        return target_flags(namespace=self.namespace)


class TlsConfig(Section):
    """The certificate of both listeners, read again when it rotates."""

    cert_file: OrdinaryPath
    key_file: OrdinaryPath
    client_ca_file: MaybePath = None
    """The CA of the nodes' certificates; needed by ``identity.kind: certificate``."""


class ListenConfig(Section):
    """Addresses: ``host:port``, ``[v6]:port`` or ``unix:/path``."""

    grpc: Address = "0.0.0.0:8443"
    web: Address = "0.0.0.0:8080"
    hosts: Annotated[tuple[HostName, ...], Field(strict=False)] = ()
    """Names by which the page may be asked for where it is plain on loopback."""
    tls: TlsConfig | None = None
    insecure_plaintext: bool = False


class IdentityConfig(Section):
    """How an agent proves which node it reports for."""

    kind: Literal["token", "certificate", "insecure-trust-hello"] = "token"
    audience: Annotated[str, Field(min_length=1)] = "sickbay"
    service_account: ServiceAccount = "sickbay:sickbay-agent"
    """``namespace:name``."""
    issuer: str = ""
    """Empty: asked of the API server's discovery document."""
    keys_cache: OrdinaryPath = Path("/var/lib/sickbay-aggregator/jwks.json")


@dataclass(frozen=True, slots=True)
class AgentsConfig(SilenceRules):
    """How agents are received. Durations are seconds."""

    heartbeat: Annotated[Duration, Field(ge=1)] = 10.0


@dataclass(frozen=True)
class LimitsConfig(CommonLimits, Limits):
    """Admission, and what is a common cause."""

    domain_labels: LabelKeys = (
        "network.topology.nvidia.com/leaf",
        "topology.kubernetes.io/rack",
    )


class PolicyConfig(Section):
    """A site's rules on top of the shipped ones."""

    file: RulesPath | None = None
    """None: the shipped rules."""


@dataclass(frozen=True)
class HistoryConfig(DatabaseCredentials):
    """Where history is kept, and for how long (seconds). The credentials are PostgreSQL's."""

    database: DatabaseUrl = "sqlite:////var/lib/sickbay-aggregator/history.db"
    """An SQLAlchemy URL."""
    keep: Annotated[Duration, Field(ge=3600)] = 28 * 86400.0
    most_rows: Annotated[int, Field(ge=10_000)] = 10_000_000
    """The most transitions, and the most recorded evidence: rows beyond are deleted, oldest first.
    """

    @property
    def is_file(self) -> bool:
        """SQLite."""
        return self.database.startswith("sqlite:")


class AlertsConfig(Section):
    """The receivers of alerts, and the file in which undelivered alerts wait."""

    outbox: OrdinaryPath = Path("/var/lib/sickbay-aggregator/outbox.db")
    """The file in which alerts wait until they are delivered."""
    webhooks: Annotated[tuple[WebhookConfig, ...], Field(strict=False)] = ()


class Config(Section):
    """The whole configuration of the aggregator."""

    mode: Annotated[Action, Field(strict=False)] = Action.OBSERVE
    """A cap on every action; ships as observe."""
    cluster: ClusterConfig = ClusterConfig()
    listen: ListenConfig = ListenConfig()
    identity: IdentityConfig = IdentityConfig()
    shards: ShardsConfig = ShardsConfig()
    agents: AgentsConfig = AgentsConfig()
    limits: LimitsConfig = LimitsConfig()
    drain: DrainConfig = DrainConfig()
    release: UncordonRules = UncordonRules()
    marks: RestoreRules = RestoreRules()
    policy: PolicyConfig = PolicyConfig()
    history: HistoryConfig = HistoryConfig()
    lemons: LemonThresholds = LemonThresholds()
    alerts: AlertsConfig = AlertsConfig()
    log_level: Literal["debug", "info", "warning", "error"] = "info"


def load(path: Path, *, root: Path = Path("/")) -> Config:
    """The settings in the file at ``path``, or `ConfigError` with all that is wrong with them.

    Relative paths are relative to the file's folder. The files that it names must exist below
    ``root``.
    """
    document = read(path)
    config, problems = validate(document, Config)
    spoilt = frozenset(problem.section for problem in problems)
    if config is None:
        # A problem in one section must not hide a problem in another: the rest is checked with this
        # section at its defaults, and no problem is reported that would rest on them.
        data = {name: value for name, value in document.data.items() if name not in spoilt}
        config, _ = validate(Document(document.name, data, document.lines), Config)
        assert config is not None
    for finding in (
        *_contradictions(config),
        *_missing_files(config, root),
        *_no_databases(config, root),
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
    yield from _exposed(config.listen)
    yield from _unprovable(config)
    yield from _shared(config)
    for key, text in drain_contradictions(config.drain):
        yield _finding(key, text)
    for key, text in shards_contradictions(
        config.shards,
        kubernetes=config.cluster.kind == "kubernetes",
        tls=config.listen.tls is not None,
        grpc=config.listen.grpc,
        web=config.listen.web,
    ):
        yield _finding(key, text, "cluster", "listen")
    if config.drain.namespaces and config.cluster.kind == "local":
        # "*" would match the namespace that stands for the command `drain`, which then never ran.
        text = 'namespaces have pods, and cluster.kind is "local"; expected none'
        yield _finding(("drain", "namespaces"), text, "cluster")
    for name in ("password_file", "ca_file", "insecure_plaintext"):
        if config.history.is_file and getattr(config.history, name):
            text = "history.database is a file; expected this with PostgreSQL alone"
            yield _finding(("history", name), text)
    if config.agents.silent_after < 2 * config.agents.heartbeat:
        text = (
            f"{config.agents.silent_after:g}s is less than two heartbeats, so that one late "
            f'heartbeat is silence; expected at least "{2 * config.agents.heartbeat:g}s"'
        )
        yield _finding(("agents", "silent_after"), text)


def _exposed(listen: ListenConfig) -> Iterator[_Finding]:
    if listen.tls is None and not listen.insecure_plaintext:
        for name, address in (("grpc", listen.grpc), ("web", listen.web)):
            if not is_loopback(address):
                text = (
                    f'"{address}" can be reached from other machines, in plaintext; expected '
                    "listen.tls, an address on loopback, or listen.insecure_plaintext: true"
                )
                yield _finding(("listen", name), text)
    if listen.grpc == listen.web and not listen.grpc.endswith(":0"):
        yield _finding(("listen", "web"), "the same as listen.grpc; expected another port")


def _shared(config: Config) -> Iterator[_Finding]:
    """Databases that would be one file: each is written as if it had the file to itself."""
    history = _history_file(config)
    files: dict[str, str] = {}
    if config.cluster.kind == "local":
        files[str(config.cluster.local.database)] = "cluster.local.database"
    for key, path in (
        (("history", "database"), history),
        (("alerts", "outbox"), str(config.alerts.outbox)),
    ):
        if path in files:
            text = f"the same file as {files[path]}; expected one of its own"
            yield _finding(key, text, files[path].partition(".")[0])
        files.setdefault(path, ".".join(key))


def _history_file(config: Config) -> str:
    return config.history.database.partition("///")[2] if config.history.is_file else ""


def _unprovable(config: Config) -> Iterator[_Finding]:
    """Identities that could not be proven, or that any client could claim."""
    kind, listen, key = config.identity.kind, config.listen, ("identity", "kind")
    if kind == "token" and config.cluster.kind != "kubernetes":
        text = (
            '"token" needs the keys of a Kubernetes API server, and cluster.kind is "local"; '
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
            f'"{kind}" lets every client that reaches "{listen.grpc}" speak for any node; expected '
            '"token" or "certificate", listen.grpc on loopback, or listen.insecure_plaintext: true'
        )
        yield _finding(key, text, "listen")


_SECRETS = {"secret_file", "password_file", "token_file"}


def _missing_files(config: Config, root: Path) -> Iterator[_Finding]:
    for key, file in _files(config):
        if file is None:
            continue
        try:
            with require_regular_file(root / file.relative_to("/"), most=MOST).open("rb") as opened:
                empty = key[-1] in _SECRETS and not opened.read(4096).strip()
        except OSError as error:
            text = f"{file} can't be read: {error.strerror}; expected a readable file"
            yield _finding(key, text)
            continue
        if empty:  # an unsigned alert is not sent: no alert would ever leave
            yield _finding(key, f"{file} is empty; expected a file with a secret in it")


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
    if config.cluster.kind == "local":
        yield ("cluster", "local", "database"), config.cluster.local.database
    yield ("identity", "keys_cache"), config.identity.keys_cache
    yield ("alerts", "outbox"), config.alerts.outbox
    history = _history_file(config)
    if history.startswith("/"):
        yield ("history", "database"), Path(history)


def _files(config: Config) -> Iterator[tuple[Key, Path | None]]:
    """Every file that must exist before the start."""
    yield ("cluster", "kubeconfig"), config.cluster.kubeconfig
    tls = config.listen.tls
    if tls is not None:
        yield ("listen", "tls", "cert_file"), tls.cert_file
        yield ("listen", "tls", "key_file"), tls.key_file
        yield ("listen", "tls", "client_ca_file"), tls.client_ca_file
    if config.shards.on:
        yield ("shards", "token_file"), config.shards.token_file
    yield ("shards", "ca_file"), config.shards.ca_file
    yield ("policy", "file"), config.policy.file
    yield ("history", "password_file"), config.history.password_file
    yield ("history", "ca_file"), config.history.ca_file
    hooks = {"pre_evict": config.drain.pre_evict, "post_release": config.drain.post_release}
    for name, hook in hooks.items():
        if hook.webhook is not None:
            yield ("drain", name, "webhook", "secret_file"), hook.webhook.secret_file
    for number, webhook in enumerate(config.alerts.webhooks):
        yield ("alerts", "webhooks", number, "secret_file"), webhook.secret_file
