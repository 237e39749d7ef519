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

from aggregator.config.drain import Drain
from aggregator.config.drain import contradictions as drain_contradictions
from aggregator.config.shards import Shards
from aggregator.config.shards import contradictions as shards_contradictions
from aggregator.options import NAMESPACE, options_for
from aggregator.quarantine.cluster import Action
from aggregator.quarantine.decide.record import MOST_ADMISSIONS
from aggregator.quarantine.ledger import Kind
from aggregator.reading.regular import MOST, regular
from aggregator.reading.section import Positive, Section, Strings
from aggregator.reading.values import (
    Address,
    DatabaseUrl,
    Duration,
    HttpUrl,
    LabelKey,
    MaybePath,
    Namespace,
    OrdinaryPath,
    Percent,
    RulesPath,
    ServiceAccount,
    filled_with,
    is_loopback,
)
from aggregator.reading.yaml_lines import ConfigError, Document, Key, read, validate

__all__ = ["Config", "ConfigError", "load"]

Labels = Annotated[tuple[Annotated[LabelKey, Field(min_length=1)], ...], Field(strict=False)]
Kinds = Annotated[tuple[Annotated[Kind, Field(strict=False)], ...], Field(strict=False)]
Share = Annotated[Percent, Field(gt=0)]


Command = Annotated[Strings, filled_with("node", "reason", "action")]


class LocalCommands(Section):
    """What the local cluster runs for each step, as argument lists; empty: nothing is run."""

    cordon: Command = ()
    drain: Command = ()
    release: Command = ()


class Local(Section):
    """The cluster without Kubernetes."""

    database: OrdinaryPath = Path("/var/lib/sickbay-aggregator/cluster.db")
    commands: LocalCommands = LocalCommands()
    command_timeout: Annotated[Duration, Field(ge=1)] = 30.0


class Cluster(Section):
    """Where nodes are quarantined."""

    kind: Literal["kubernetes", "local"] = "kubernetes"
    kubeconfig: MaybePath = None
    """None: in-cluster, else the usual places."""
    namespace: Namespace = NAMESPACE
    requests_per_second: Positive = 100
    burst: Positive = 200
    local: Local = Local()

    @property
    def how(self) -> str:
        """What a person's command needs besides, to act on this cluster; begins with a space."""
        if self.kind == "local":
            return options_for(local=self.local.database.absolute())
        return options_for(namespace=self.namespace)


class Tls(Section):
    """Serves both listeners; read again when it rotates."""

    cert_file: OrdinaryPath
    key_file: OrdinaryPath
    client_ca_file: MaybePath = None
    """Who signs the nodes' certificates; needed by ``identity.kind: certificate``."""


class Listen(Section):
    """Addresses: ``host:port``, ``[v6]:port`` or ``unix:/path``."""

    grpc: Address = "0.0.0.0:8443"
    web: Address = "0.0.0.0:8080"
    tls: Tls | None = None
    insecure_plaintext: bool = False


class Identity(Section):
    """How an agent proves which node it speaks for."""

    kind: Literal["token", "certificate", "insecure-trust-hello"] = "token"
    audience: Annotated[str, Field(min_length=1)] = "sickbay"
    service_account: ServiceAccount = "sickbay:sickbay-agent"
    """``namespace:name``."""
    issuer: str = ""
    """Empty: asked of the API server's discovery document."""
    keys_cache: OrdinaryPath = Path("/var/lib/sickbay-aggregator/jwks.json")


class Agents(Section):
    """How agents are heard. Durations are seconds."""

    heartbeat: Annotated[Duration, Field(ge=1)] = 10.0
    silent_after: Annotated[Duration, Field(ge=1)] = 60.0
    silent_failing: Literal["alert", "cordon"] = "alert"
    """What is done where an agent is silent, its kubelet ready, and its last evidence failing."""


class Limits(Section):
    """Admission. Counts and percentages both hold; the smaller one decides."""

    concurrent: Positive = 20
    concurrent_percent: Share = 5.0
    pool_label: LabelKey = ""
    """The node label whose value names a node's pool; empty: no pools."""
    pool_percent: Share = 20.0
    new_per_window: Annotated[int, Field(ge=1, le=MOST_ADMISSIONS)] = 10
    new_per_window_percent: Share = 20.0
    window: Annotated[Duration, Field(ge=1)] = 600.0
    """Of the rate, and of what counts as at once."""
    cooldown: Duration = 900.0
    """After the rate or a common cause has held something back."""
    after_upgrade: Duration = 120.0
    """Of a node whose driver, kernel or agent has just changed: how long evidence must stand."""
    common_cause_percent: Share = 10.0
    common_cause_nodes: Positive = 50
    domain_labels: Labels = (
        "network.topology.nvidia.com/leaf",
        "topology.kubernetes.io/rack",
    )
    """Node labels whose value names a place: a rack, a leaf switch."""
    clique_label: LabelKey = "nvidia.com/gpu.clique"
    """The node label that names the NVLink clique of a node; empty: there are none."""
    domain_percent: Share = 20.0
    evictions_at_once: Positive = 50
    quorum_percent: Percent = 50.0
    silent_drain_after: Duration = 300.0


class Policy(Section):
    """A site's rules on top of the shipped ones."""

    file: RulesPath | None = None
    """None: the shipped rules."""


class History(Section):
    """Where history is kept, and for how long (seconds)."""

    database: DatabaseUrl = "sqlite:////var/lib/sickbay-aggregator/history.db"
    """An SQLAlchemy URL."""
    password_file: MaybePath = None
    """PostgreSQL's; None: the server asks for none, or PGPASSFILE has it."""
    ca_file: MaybePath = None
    """Who signed PostgreSQL's certificate, which is then verified."""
    insecure_plaintext: bool = False
    """Whether PostgreSQL may be spoken to without TLS over a network."""
    keep: Annotated[Duration, Field(ge=3600)] = 28 * 86400.0
    most_rows: Annotated[int, Field(ge=10_000)] = 10_000_000
    """Of transitions, and as many of what agents told: what is more is deleted, oldest first."""

    @property
    def is_file(self) -> bool:
        """SQLite."""
        return self.database.startswith("sqlite:")


class Lemons(Section):
    """From where on each signal of a node's last four weeks counts."""

    quarantines: Annotated[int, Field(ge=2)] = 4
    codes: Annotated[int, Field(ge=2)] = 3
    days: Annotated[int, Field(ge=2)] = 4
    returns: Positive = 2
    """Quarantines within a week of a release."""
    signals: Annotated[int, Field(ge=1, le=4)] = 2
    """So many of the four make a lemon."""


class Webhook(Section):
    """Where alerts are posted. ``timeout`` is in seconds."""

    url: HttpUrl
    secret_file: OrdinaryPath
    """Its content, stripped of whitespace at the end, signs every request."""
    kinds: Kinds | None = None
    """The transitions that it hears of; None: all that are alerts."""
    timeout: Duration = 10.0


class Alerts(Section):
    """Who is told, and where what is to be told waits."""

    outbox: OrdinaryPath = Path("/var/lib/sickbay-aggregator/outbox.db")
    """Where alerts wait until they are taken."""
    webhooks: Annotated[tuple[Webhook, ...], Field(strict=False)] = ()


class Config(Section):
    """Everything that the aggregator was told."""

    mode: Annotated[Action, Field(strict=False)] = Action.OBSERVE
    """A cap on every action; ships as observe."""
    cluster: Cluster = Cluster()
    listen: Listen = Listen()
    identity: Identity = Identity()
    shards: Shards = Shards()
    agents: Agents = Agents()
    limits: Limits = Limits()
    drain: Drain = Drain()
    policy: Policy = Policy()
    history: History = History()
    lemons: Lemons = Lemons()
    alerts: Alerts = Alerts()
    log_level: Literal["debug", "info", "warning", "error"] = "info"


def load(path: Path, *, root: Path = Path("/")) -> Config:
    """The settings in the file at ``path``, or `ConfigError` with all that is wrong with them.

    Relative paths are seen from the file's folder. The files that it names must exist below
    ``root``.
    """
    document = read(path)
    config, problems = validate(document, Config)
    spoilt = frozenset(problem.section for problem in problems)
    if config is None:
        # What is wrong in one section must not hide what is wrong in another: the rest is looked
        # at with this section at its defaults, and nothing is said that would rest on them.
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
    """What is sound by itself and not together."""
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
        # "*" would match what stands for the command `drain`, which then never ran.
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


def _exposed(listen: Listen) -> Iterator[_Finding]:
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
    """Databases that would be one file: each is written as if it were alone."""
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
    """Identities that could not be proven, or that anybody could claim."""
    kind, listen, key = config.identity.kind, config.listen, ("identity", "kind")
    if kind == "token" and config.cluster.kind != "kubernetes":
        text = (
            '"token" needs the keys of a Kubernetes API server, and cluster.kind is "local"; '
            'expected "certificate" (or "insecure-trust-hello" for a trial on loopback)'
        )
        yield _finding(key, text, "cluster")
    if kind == "certificate" and (listen.tls is None or listen.tls.client_ca_file is None):
        text = '"certificate" needs to know who signs; expected listen.tls.client_ca_file'
        yield _finding(key, text, "listen")
    if kind == "insecure-trust-hello" and not (
        is_loopback(listen.grpc) or listen.insecure_plaintext
    ):
        text = (
            f'"{kind}" lets whoever reaches "{listen.grpc}" speak for any node; expected "token" '
            'or "certificate", listen.grpc on loopback, or listen.insecure_plaintext: true'
        )
        yield _finding(key, text, "listen")


_SECRETS = {"secret_file", "password_file", "token_file"}


def _missing_files(config: Config, root: Path) -> Iterator[_Finding]:
    for key, file in _files(config):
        if file is None:
            continue
        try:
            with regular(root / file.relative_to("/"), most=MOST).open("rb") as opened:
                empty = key[-1] in _SECRETS and not opened.read(4096).strip()
        except OSError as error:
            text = f"{file} can't be read: {error.strerror}; expected a readable file"
            yield _finding(key, text)
            continue
        if empty:  # nothing is sent that is not signed: no alert would ever leave
            yield _finding(key, f"{file} is empty; expected a file with a secret in it")


def _no_databases(config: Config, root: Path) -> Iterator[_Finding]:
    """Where the aggregator keeps what is its own, and something else lies that is no file."""
    for key, file in _kept(config):
        try:
            regular(root / file.relative_to("/"))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # not made yet, or not this user's to see: its own opening tells
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
    """Every file that must be there before anything starts."""
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
