"""The reference and the example of the aggregator's configuration have every key."""

import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

from aggregator.cluster.port import Action
from aggregator.config.settings import Config, load
from release.reference import configuration
from tests.aggregator.config_files import ROOT, keys_of, written
from tests.support.yaml_documents import read_yaml


def test_each_key_has_a_meaning_in_the_code() -> None:
    meanings = configuration.meanings()
    assert sorted(meanings) == sorted(keys_of(Config))
    assert sorted(key for key, meaning in meanings.items() if len(meaning) < 8) == []


def test_the_references_defaults_are_the_defaults(tmp_path: Path) -> None:
    page = configuration.page()
    rows = re.findall(r"^\| `([a-z_.]+)` \| `([^`]+)` \|", page, re.MULTILINE)
    assert len(rows) > 20
    sections: dict[str, Any] = {}
    for key, default in rows:
        *path, name = key.split(".")
        where = sections
        for part in path:
            where = where.setdefault(part, {})
        where[name] = default
    sections["listen"] |= {"insecure_plaintext": "true"}  # its defaults need TLS
    text = _yaml(sections)
    told = load(written(tmp_path, text))
    plain = load(written(tmp_path, "listen: {insecure_plaintext: true}\n"))
    assert told == plain


def _yaml(sections: dict[str, Any], indent: str = "") -> str:
    return "".join(
        f"{indent}{key}:\n{_yaml(value, indent + '  ')}"
        if isinstance(value, dict)
        else f"{indent}{key}: {value}\n"
        for key, value in sections.items()
    )


def referenced(root: Path) -> Path:
    """A root that contains every file that the example names."""
    named = (
        "tls/tls.crt",
        "tls/tls.key",
        "tls/clients.crt",
        "slurm.jwt",
        "kubeconfig",
    )
    own = [f"etc/sickbay/{name}" for name in (*named, "ca.crt", "people.crt", "proxy.crt")]
    receivers = tuple(
        f"etc/sickbay-alerts/{name}" for name in ("pagerduty-key", "slack-url", "webhook-secret")
    )
    others = (
        "etc/sickbay-oidc/client-secret",
        "etc/sickbay-oidc/ca.crt",
        "etc/sickbay-jobs/secret",
    )
    for path in (*own, *receivers, *others, "var/run/secrets/sickbay-replicas/token"):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    return root


def test_the_example_loads(tmp_path: Path) -> None:
    config = load(ROOT / "deploy" / "aggregator.yaml", root=referenced(tmp_path))
    assert config.mode is Action.OBSERVE
    assert config.listen.tls is not None


#: Keys whose default is not worth a line, and that are shown as a site would write them.
EXAMPLES = {
    "access.anonymous",
    "access.client_ca_file",
    "agents.none_on",
    "maintenance.marks",
    "access.front_proxy.ca_file",
    "access.front_proxy.groups_header",
    "access.front_proxy.names",
    "access.front_proxy.user_header",
    "access.oidc.ca_file",
    "access.oidc.client_id",
    "access.oidc.client_secret_file",
    "access.oidc.groups_claim",
    "access.oidc.issuer",
    "access.oidc.operators",
    "access.oidc.page",
    "access.oidc.scopes",
    "access.oidc.session",
    "access.oidc.user_claim",
    "access.oidc.viewers",
    "pools",
    "alerts.page",
    "alerts.receivers",
    "alerts.routes",
    "alerts.silences",
    "certificates.automatic",
    "conditions",
    "repair.idle_nodes.concurrent",
    "repair.idle_nodes.concurrent_percent",
    "repair.idle_nodes.every",
    "repair.idle_nodes.priority_class",
    "repair.idle_nodes.profile",
    "repair.repairers",
    "cluster.kubeconfig",
    "cluster.local.commands.cordon",
    "cluster.local.commands.release",
    "cluster.slurm.conf",
    "cluster.slurm.names",
    "cluster.slurm.programs",
    "cluster.slurm.rest.ca_file",
    "cluster.slurm.rest.token_file",
    "cluster.slurm.rest.url",
    "cluster.slurm.rest.user",
    "cluster.store.ca_file",
    "cluster.store.database",
    "cluster.store.password_file",
    "documentation_url",
    "drain.notice.namespaces",
    "drain.notice.never_for",
    "drain.notice.pods",
    "drain.notice.webhooks",
    "drain.notice.within",
    "drain.gang_keys",
    "jobs.job_keys",
    "jobs.team_keys",
    "drain.node_owner_kinds",
    "drain.namespaces",
    "drain.post_release.command",
    "drain.pre_evict.command",
    "drain.protected_selector",
    "limits.pool_label",
    "listen.tls.cert_file",
    "listen.tls.client_ca_file",
    "listen.tls.key_file",
    "policy.file",
    "replicas.ca_file",
    "replicas.domain",
    "replicas.name",
    "replicas.page",
}


def test_the_example_loads_with_all_that_is_commented_out(tmp_path: Path) -> None:
    config = load(everything(tmp_path), root=tmp_path)
    assert config.cluster.local.commands.release[0] == "/etc/sickbay/open"
    assert config.alerts.routes[3].kinds is not None
    assert config.drain.protected_selector == {"example.test/never-evict": "true"}


def test_the_example_shows_every_key_and_the_defaults_are_the_defaults(tmp_path: Path) -> None:
    shown = load(everything(tmp_path), root=tmp_path)
    plain = load(written(tmp_path, "listen: {insecure_plaintext: true}\n"))
    keys = {key.partition("[]")[0] for key in keys_of(Config)}
    set_here = set(flat(read_yaml(everything(tmp_path).read_text())))
    # A hook is a command or a webhook: the example has commands. And it has replicas.domain, and no
    # local cluster.
    left = {key for key in keys - set_here if ".webhook." not in key}
    assert left == {"replicas.address", "access.tokens_file"}
    for key in sorted(keys & set_here - EXAMPLES - {"listen.insecure_plaintext"}):
        assert attrgetter(key)(shown) == attrgetter(key)(plain), key


def everything(root: Path) -> Path:
    """The example with all that is commented out, in a root where all is that it names."""
    text = (ROOT / "deploy" / "aggregator.yaml").read_text()
    # "# Words" are for people; "#key: value" and "#  key: value" are settings.
    full = re.sub(r"^( *)#(?! \S)", r"\1", text, flags=re.MULTILINE)
    referenced(root)
    folder = root / str(root).lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policy.yaml").write_text("")
    return written(root, full)


def flat(section: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys of a file's sections; a list of sections is one."""
    for name, value in section.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name
