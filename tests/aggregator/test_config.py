"""A configuration file is taken as it is meant, or refused whole with every line that is wrong."""

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from aggregator.cluster.port import Action, Pod
from aggregator.composition.controller_parts import _settings
from aggregator.config.settings import ConfigError, load
from aggregator.events import EventKind
from aggregator.policy.defaults import read_policy
from aggregator.quarantine.decide.drain_plan import DrainMoment, plan_drain
from aggregator.quarantine.decide.pool_budget import allowance
from aggregator.quarantine.drain.pod_waits import InTurn
from aggregator.quarantine.repair.protocol import RepairSettings
from tests.aggregator.config_files import EMPTY, LOCAL, ONE, problems, written
from tests.support.pipes import pipe_with
from tests.support.present import present
from tests.support.text_files import text_file


def test_a_file_that_asks_for_nothing_gets_the_careful_choice_of_each_thing(tmp_path: Path) -> None:
    """The effect of each default; a test below compares the numbers with the reference."""
    settings = _settings(load(written(tmp_path, LOCAL)), RepairSettings(), InTurn())
    assert not [action for action in Action if action.strength < settings.mode.strength]
    limits = settings.limits
    for nodes in (1, 3, 16, 100, 10_000):
        most = min(limits.concurrent, allowance(nodes, limits.concurrent_percent))
        assert 1 <= most <= max(1, nodes // 10), "a fleet can lose one node, and no tenth of itself"
        assert limits.evictions_at_once >= 1
    assert limits.new_per_window < limits.concurrent, "not all that may be out goes at once"
    pod = Pod("jobs", "a", "uid-a", "1", "Running", False, False, "Job", "j", ())
    began = DrainMoment(1000.0, 1000.0, 1000.0 + settings.drain.deadline)
    for unlike in (
        replace(pod, empty_dirs=("scratch",)),
        replace(pod, owner_kind=""),
        replace(pod, annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}),
    ):
        assert plan_drain([unlike], settings.drain, began).kept, "its work would be lost"
    assert plan_drain([pod], settings.drain, began).evict == (pod,)
    long_after = DrainMoment(began.deadline + 86_400, began.began, began.deadline)
    assert not plan_drain([pod], settings.drain, long_after).force, "nothing is forced unasked"


def test_each_limit_that_a_file_sets_is_the_one_that_is_kept_to(tmp_path: Path) -> None:
    text = """limits:
  concurrent: 7
  concurrent_percent: 11%
  pool_label: example.com/pool
  pool_percent: 13%
  quorum_percent: 17%
  new_per_window: 5
  new_per_window_percent: 19%
  window: 23m
  cooldown: 29m
  after_upgrade: 31m
  evictions_at_once: 37
  silent_drain_after: 41m
  common_cause_percent: 43%
  common_cause_nodes: 47
  domain_percent: 53%
"""
    settings = _settings(load(written(tmp_path, LOCAL + text)), RepairSettings(), InTurn())
    limits, common = settings.limits, settings.common
    assert (limits.concurrent, limits.concurrent_percent) == (7, 11)
    assert (limits.pool_label, limits.pool_percent) == ("example.com/pool", 13)
    assert limits.quorum_percent == 17
    assert (limits.new_per_window, limits.new_per_window_percent) == (5, 19)
    assert (limits.window, limits.cooldown, limits.after_upgrade) == (1380, 1740, 1860)
    assert (limits.evictions_at_once, limits.silent_drain_after) == (37, 2460)
    assert (common.common_cause_percent, common.common_cause_nodes) == (43, 47)
    assert common.domain_percent == 53
    assert common.window == limits.window


def test_the_controller_gets_the_sections_themselves(tmp_path: Path) -> None:
    """A copy, field by field, forgets the field that is added next."""
    config = load(written(tmp_path, LOCAL))
    settings = _settings(config, RepairSettings(), InTurn())
    assert settings.limits is config.limits
    assert settings.common is config.limits
    assert settings.drain is config.drain
    assert settings.silence is config.agents
    assert settings.uncordon is config.release
    assert settings.marks is config.marks
    assert settings.conditions is config.conditions


def test_the_option_that_leads_a_command_to_this_cluster(tmp_path: Path) -> None:
    assert load(written(tmp_path, LOCAL)).cluster.how == ""
    in_namespace = load(written(tmp_path, f"{LOCAL}cluster: {{namespace: health}}"))
    assert in_namespace.cluster.how == " --namespace health"
    text = "cluster: {kind: local, local: {database: '/srv/a b.db'}}\nidentity: {kind: "
    local = load(written(tmp_path, f"{LOCAL}{text}insecure-trust-hello}}"))
    assert local.cluster.how == " --local '/srv/a b.db'"


def test_a_route_takes_alerts_about_pods_without_an_owner(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("https://hooks.example.test/x")
    text = "alerts: {receivers: [{name: a, slack: {url_file: url}}], routes: [{name: r, "
    config = load(written(tmp_path, f"{LOCAL}{text}receiver: a, owners: ['']}}]}}"))
    assert config.alerts.routes[0].owners == ("",)


def test_values_are_read_in_their_units(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    config = load(
        written(
            tmp_path,
            f"""{LOCAL}
mode: drain
cluster:
  kind: local
  local:
    commands:
      cordon: [scontrol, update]
    command_timeout: 1500ms
identity: {{kind: insecure-trust-hello}}
agents: {{heartbeat: 2.5s, silent_after: 1m, silent_failing: cordon}}
limits: {{pool_percent: 12.5%, concurrent: 1}}
drain: {{deadline: 2d, protected_selector: "a.test/keep=yes,b=c"}}
alerts:
  receivers:
    - name: hook
      webhook: {{url: 'https://example.test/hook?key=1', secret_file: secret}}
  routes: [{{name: opened, receiver: hook, kinds: [incident.opened]}}]
history:
""",
        )
    )
    assert config.mode is Action.DRAIN
    assert config.cluster.local.commands.cordon == ("scontrol", "update")
    assert config.cluster.local.command_timeout == 1.5
    assert (config.agents.heartbeat, config.agents.silent_after) == (2.5, 60.0)
    assert config.agents.silent_failing == "cordon"
    assert config.limits.pool_percent == 12.5
    assert config.limits.concurrent == 1
    assert config.drain.deadline == 172_800
    assert config.drain.protected_selector == {"a.test/keep": "yes", "b": "c"}
    assert config.alerts.routes[0].kinds == (EventKind.INCIDENT_OPENED,)
    webhook = present(config.alerts.receivers[0].webhook)
    assert webhook.secret_file == tmp_path / "secret"
    assert config.history.keep == 28 * 86_400  # an empty section


BAD: list[tuple[str, str]] = [
    # (the text of line 2, the error about it)
    ("mode: obsrve", 'mode: "obsrve"; expected observe, cordon or drain (did you mean "observe"?)'),
    ("mode: 3", "mode: 3; expected observe, cordon or drain"),
    (
        "modes: drain",
        'modes: unknown key; expected "mode"? (known here: mode, pools, cluster, listen, ',
    ),
    ("zzz: 1", "zzz: unknown key; expected one of mode, pools, cluster, "),
    ("limits: {concurent: 5}", 'limits.concurent: unknown key; expected "concurrent"? '),
    ("limits: 5", "limits: 5; expected a section: keys, indented, below it"),
    ("limits: [a]", "limits: a list; expected a section"),
    ("limits: {concurrent: -1}", "limits.concurrent: -1; expected at least 1"),
    ("limits: {concurrent: 0}", "limits.concurrent: 0; expected at least 1"),
    ("limits: {concurrent_percent: 0%}", "limits.concurrent_percent: "),
    ("limits: {pool_percent: 0%}", 'limits.pool_percent: "0%"; expected more than "0%"'),
    ("limits: {new_per_window: 0}", "limits.new_per_window: 0; expected at least 1"),
    ("limits: {new_per_window: 5001}", "limits.new_per_window: 5001; expected at most 5000"),
    ("limits: {new_per_window_percent: 0%}", "limits.new_per_window_percent: "),
    (
        "limits: {common_cause_percent: 101%}",
        'limits.common_cause_percent: "101%" is no percentage',
    ),
    ("limits: {common_cause_percent: 0%}", "limits.common_cause_percent: "),
    ("limits: {common_cause_nodes: 0}", "limits.common_cause_nodes: 0; expected at least 1"),
    ("limits: {domain_percent: 0%}", "limits.domain_percent: "),
    ("limits: {domain_labels: rack}", "limits.domain_labels: "),
    ("limits: {window: 0s}", "limits.window: "),
    ("limits: {concurrent: many}", 'limits.concurrent: "many"; expected a whole number'),
    ("limits: {concurrent: 1.5}", "limits.concurrent: 1.5; expected a whole number"),
    ("limits: {concurrent: true}", "limits.concurrent: true; expected a whole number"),
    ("limits: {concurrent: '5'}", 'limits.concurrent: "5"; expected a whole number'),
    ("limits: {pool_percent: 5}", "limits.pool_percent: 5 is no percentage; expected a percentage"),
    (
        "conditions: [{type: Ready, rules: [gpu-fatal], unhealthy: 'False'}]",
        'conditions[0].type: "Ready" is written by another; expected a type that is not in use',
    ),
    (
        "conditions: [{type: 'A b', rules: [gpu-fatal], unhealthy: 'True'}]",
        'conditions[0].type: "A b"; expected the type of a condition, such as ',
    ),
    ("conditions: [{type: A, rules: [gpu-fatal], unhealthy: 'no'}]", "conditions[0].unhealthy"),
    (
        f"conditions: [{ONE}, {ONE}]",
        'conditions[1].type: "A" has an entry already; expected one entry with all of its rules',
    ),
    ("limits: {pool_percent: 101%}", 'limits.pool_percent: "101%" is no percentage'),
    ("limits: {pool_percent: -1%}", 'limits.pool_percent: "-1%" is no percentage'),
    ("limits: {pool_label: a b}", 'limits.pool_label: "a b"; expected a key of Kubernetes, '),
    ("limits: {clique_label: /a}", 'limits.clique_label: "/a"; expected a key of Kubernetes, '),
    ("limits: {domain_labels: [a/b, 'r!']}", 'limits.domain_labels[1]: "r!"; expected a key of'),
    ("limits: {domain_labels: ['']}", "limits.domain_labels[0]: "),
    (
        f"limits: {{domain_labels: [{', '.join(f'a{n}' for n in range(32))}]}}",
        "limits.domain_labels: a list; expected a list of at most 31",
    ),
    ("history: {keep: 0s}", 'history.keep: "0s"; expected at least "1h"'),
    ("repair: {window: 1ms}", 'repair.window: "1ms"; expected at least "1h"'),
    (
        "repair: {idle_nodes: {priority_class: High}}",
        (
            'repair.idle_nodes.priority_class: "High"; expected the name of a PriorityClass: small '
            "letters, digits, '-' and '.'"
        ),
    ),
    (
        "repair: {repairers: [{kind: reboot, ipmi: {host: -x, user: u, password_file: /p}}]}",
        'repair.repairers[0].ipmi.host: "-x"; expected the name or address of the BMC, such as',
    ),
    (
        "repair: {repairers: [{kind: test, job: {namespace: t, image: a/b:1, profiles: true}}]}",
        "repair.repairers[0].job.profiles: true; expected a section: keys, indented, below it",
    ),
    ("marks: {taint: {key: ''}}", "marks.taint.key: is empty; expected text"),
    ("marks: {taint: {key: a b}}", 'marks.taint.key: "a b"; expected a key of Kubernetes, such'),
    ("marks: {taint: {effect: Evict}}", 'marks.taint.effect: "Evict" is no effect of a taint; exp'),
    (
        "pools: [{name: a, selector: {matchLabels: x}}]",
        "pools[0].selector.matchLabels: this text; expected a section: keys, indented, below it",
    ),
    (
        "pools: [{name: a, selector: {matchLabels: [x]}}]",
        "pools[0].selector.matchLabels: a list; expected a section: keys, indented, below it",
    ),
    (
        "conditions: [{type: A, rules: [xid-hardware], unhealthy: True}]",
        'conditions[0].unhealthy: true; expected "True" or "False", in quotes',
    ),
    (
        "conditions: [{type: A, rules: [], unhealthy: 'True'}]",
        "conditions[0].rules: is empty; expected at least one entry",
    ),
    (  # its entry alone, and not that the list is empty without it
        "conditions: [{type: A, rules: [5], unhealthy: 'True'}]",
        "conditions[0].rules[0]: 5; expected text in quotes",
    ),
    ("documentation_url: true", "documentation_url: true is no address of the documentation"),
    ("limits: {pool_label: 5}", "limits.pool_label: 5; expected text in quotes"),
    ("limits: {evictions_at_once: 0}", "limits.evictions_at_once: 0; expected at least 1"),
    ("agents: {silent_failing: drain}", 'agents.silent_failing: "drain"'),
    ("agents: {heartbeat: 10}", "agents.heartbeat: 10 is no duration; expected a number with its "),
    ("agents: {heartbeat: 10 s}", 'agents.heartbeat: "10 s" is no duration'),
    ("agents: {heartbeat: 10sec}", 'agents.heartbeat: "10sec" is no duration'),
    ("agents: {heartbeat: -1s}", 'agents.heartbeat: "-1s" is no duration'),
    ("agents: {heartbeat: 10ms}", 'agents.heartbeat: "10ms"; expected at least "1s"'),
    (
        "agents: {heartbeat: 40s}",
        "agents.silent_after: 60s is less than two heartbeats, so that one late heartbeat is ",
    ),
    ("reconcilers: {release: false}", "reconcilers.release"),
    ("drain: {evict_unmanaged: maybe}", 'drain.evict_unmanaged: "maybe"; expected true or false'),
    ("drain: {protected_selector: a in (b)}", "drain.protected_selector: "),
    ("cluster: {kind: nomad}", 'cluster.kind: "nomad"; expected kubernetes, local or slurm'),
    (
        "cluster: {slurm: {names: [{agents: 'g[1-3]', nodes: 'n[1-2]'}]}}",
        "cluster.slurm.names[0]: 3 agents and 2 nodes; expected as many of both",
    ),
    (
        "cluster: {slurm: {names: [{agents: 'g[1-2]', nodes: 'n[1-'}]}}",
        "cluster.slurm.names[0].nodes: 'n[1-' is no host list; expected one such as n[1-4,7]",
    ),
    (
        "cluster: {slurm: {names: [{agents: 'a,b', nodes: 'n1,n2'}, {agents: c, nodes: n2}]}}",
        'cluster.slurm.names[1].nodes: "n2" is named twice; expected each name once',
    ),
    ("cluster: {slurm: {node_names: fqdn}}", 'cluster.slurm.node_names: "fqdn"; expected name, '),
    (
        "cluster: {kind: local}",
        'identity.kind: "token" needs the keys of a Kubernetes API server, and cluster.kind is ',
    ),
    ("cluster: {namespace: ''}", 'cluster.namespace: ""; expected a namespace'),
    (
        "cluster: {local: {commands: {cordon: scontrol}}}",
        "cluster.local.commands.cordon: this text; expected a list, such as [a, b]",
    ),
    (
        "cluster: {local: {commands: {cordon: [scontrol, 5]}}}",
        "cluster.local.commands.cordon[1]: 5; expected text in quotes",
    ),
    (
        "cluster: {local: {commands: {cordon: [scontrol, 'nodename={nodee}']}}}",
        (
            'cluster.local.commands.cordon: no value is filled in for "{nodee}" (did you mean '
            '"{node}"?); expected {node}, {reason} or {action}'
        ),
    ),
    (
        "cluster: {local: {commands: {release: [a, '{incident}']}}}",
        'cluster.local.commands.release: no value is filled in for "{incident}"; expected {node}, ',
    ),
    (
        "drain: {pre_evict: {command: [a, '{NODE}']}}",
        'drain.pre_evict.command: no value is filled in for "{NODE}"',
    ),
    (
        "cluster: {kubeconfig: /no/such}",
        "cluster.kubeconfig: /no/such can't be read: No such file or directory; expected a ",
    ),
    ("policy: {file: nope.yaml}", "policy.file: "),
    (
        'policy: {file: ""}',
        'policy.file: "" is no path; expected the path of a file, or no such key for the shipped',
    ),
    ("identity: {kind: tokn}", 'identity.kind: "tokn"; expected token, certificate or '),
    ("identity: {service_account: agent}", 'identity.service_account: "agent"; expected "NAMESP'),
    (
        "identity: {kind: certificate}",
        'identity.kind: "certificate" needs the CA that signs; expected listen.tls.client_ca_file',
    ),
    ("cluster: {namespace: sick/bay}", 'cluster.namespace: "sick/bay"; expected a namespace'),
    ("cluster: {namespace: Sickbay}", 'cluster.namespace: "Sickbay"; expected a namespace'),
    (
        "cluster: {kind: local, local: {command_timeout: 0s}}",
        'cluster.local.command_timeout: "0s"; expected at least "1s"',
    ),
    ("history: {database: history.db}", 'history.database: "history.db"; expected "sqlite:///"'),
    (
        "history: {database: 'postgresql+asyncpg://u:s3cr3t@db/x'}",
        "history.database: a password in the configuration is shown to every reader of it; expect",
    ),
    (
        "history: {database: 'postgresql+psycopg://u@db/x'}",
        'history.database: "postgresql+psycopg" is not known here; expected "postgresql+asyncpg"',
    ),
    (
        "history: {database: 'postgresql+asyncpg://u@db/x?ssl=disable'}",
        "history.database: options in the URL",
    ),
    (
        "history: {database: 'postgresql+asyncpg://u@db/x?host=/run&host=/b'}",
        "history.database: options in the URL",
    ),
    (
        "history: {database: 'postgresql+asyncpg://db/x'}",
        "history.database: no user, no database, or",
    ),
    (
        "history: {database: 'postgresql+asyncpg://u@db/'}",
        "history.database: no user, no database, or",
    ),
    (
        "history: {database: 'postgresql+asyncpg://u@/x'}",
        "history.database: no user, no database, or",
    ),
    (
        "history: {database: 'postgresql+asyncpg://u@db:99999/x'}",
        "history.database: this is no URL",
    ),
    ("history: {password_file: /etc/passwd}", "history.password_file: history.database is a file"),
    ("history: {ca_file: /etc/passwd}", "history.ca_file: history.database is a file"),
    ("history: {insecure_plaintext: true}", "history.insecure_plaintext: history.database is a"),
    (
        f"history: {{database: 'postgresql+asyncpg://u@db/x', password_file: {EMPTY}}}",
        f"history.password_file: {EMPTY} is empty; expected a file with a secret in it",
    ),
    ("history: {most_rows: 3}", "history.most_rows: 3; expected at least 10000"),
    ("alerts: {receivers: {name: x}}", "alerts.receivers: a section; expected a list"),
    (
        f"alerts: {{receivers: [{{name: a, webhook: {{secret_file: {EMPTY}}}}}]}}",
        "alerts.receivers[0].webhook.url: missing; expected this key with a value",
    ),
    (
        f"alerts: {{receivers: [{{name: a, webhook: {{url: 'ftp://x', secret_file: {EMPTY}}}}}]}}",
        "alerts.receivers[0].webhook.url: this is no URL that can be posted to",
    ),
    (
        "alerts: {routes: [{name: a, receiver: b, kinds: [incident.open]}]}",
        'alerts.routes[0].kinds[0]: "incident.open"; expected incident.opened, ',
    ),
    (
        "alerts: {routes: [{name: a, receiver: b, kinds: []}]}",
        "alerts.routes[0].kinds: is empty; expected at least one entry",
    ),
    (
        "alerts: {silences: [{nodes: [], until: 2026-12-01T08:00:00Z, reason: x}]}",
        "alerts.silences[0].nodes: is empty; expected at least one entry",
    ),
    (
        "alerts: {receivers: [{name: a, webhook: {url: 'http://x', secret_file: /no/such}}]}",
        "alerts.receivers[0].webhook.secret_file: /no/such can't be read",
    ),
    (
        "drain: {notice: {webhooks: [{match: x, url: 'http://x', secret_file: /no/such}]}}",
        "drain.notice.webhooks[0].secret_file: /no/such can't be read",
    ),
    *(
        (
            f"alerts: {{silences: [{{until: {value}, reason: x}}]}}",
            f'alerts.silences[0].until: {shown} is no time with a zone; expected such as "2026-',
        )
        for value, shown in (
            ("2030-12-01T08:00:00", "2030-12-01T08:00:00"),
            ('"2030-12-01T08:00:00"', '"2030-12-01T08:00:00"'),
            ("2030-12-01", "2030-12-01"),
        )
    ),
    (
        f"alerts: {{receivers: [{{name: a, webhook: {{url: 'http://x', secret_file: {EMPTY}}}}}]}}",
        f"alerts.receivers[0].webhook.secret_file: {EMPTY} is empty; expected a file with a secret",
    ),
    ("drain: {deadline: 99999d}", 'drain.deadline: "99999d" is too long; expected at most ten'),
    (
        "documentation_url: docs.example.com",
        'documentation_url: "docs.example.com" is no address of the documentation; expected "https',
    ),
    (
        "documentation_url: https://docs.test/?a=1",
        'documentation_url: "https://docs.test/?a=1" is no address of the documentation',
    ),
    ("log_level: loud", 'log_level: "loud"; expected debug, info, warning or error'),
    (
        "limits.concurrent: 5",
        'limits.concurrent: unknown key; expected "limits:" and, indented, below it "concurrent:"',
    ),
    ("[1, 2]: x", "not a plain key; expected a word before the colon"),
    ("mode: !!python/object:os.system x", "mode: "),
    *(
        (f"mode: {value}", f"mode: tag:yaml.org,2002:{tag} can't be read; expected plain text")
        for tag, value in (("bool", "!!bool x"), ("int", "!!int ''"), ("int", f"0x{'F' * 4000}"))
    ),
]


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("routes", "routes: [{name: a, receiver: am, owners: [vision]}]"),
        ("silences", "silences: [{owners: [v], until: '2030-01-01T00:00:00Z', reason: x}]"),
    ],
)
def test_owners_of_pods_are_refused_where_there_are_no_pods(
    tmp_path: Path, name: str, section: str
) -> None:
    where = "cluster: {kind: local}\nidentity: {kind: insecure-trust-hello}\n"
    receivers = "receivers: [{name: am, alertmanager: {url: 'http://am'}}]"
    [problem] = problems(tmp_path, f"{LOCAL}{where}alerts: {{{receivers}, {section}}}\n")
    assert f"alerts.{name}[0].owners: pods have owners on Kubernetes alone" in problem


def test_a_token_for_slurmrestd_is_sent_in_plaintext_to_loopback_alone(tmp_path: Path) -> None:
    for host, refused in (("10.0.0.7", True), ("127.0.0.1", False)):
        rest = f"{{url: 'http://{host}:6820', token_file: /t}}"
        found = problems(tmp_path, f"{LOCAL}cluster: {{slurm: {{rest: {rest}}}}}\n")
        assert any("/t can't be read" in str(one) for one in found)
        assert any("sends the token in plaintext" in str(one) for one in found) is refused


@pytest.mark.parametrize(("line", "says"), BAD, ids=[line[:50] for line, _ in BAD])
def test_what_is_wrong_is_said_with_its_line_and_what_was_expected(
    tmp_path: Path, line: str, says: str
) -> None:
    [problem] = problems(tmp_path, LOCAL + line + "\n")
    number, _, text = problem.partition(": ")
    # A contradiction with a default is reported where its section would be, or at the top.
    assert number in {"1", "2"}
    assert text.startswith(says)
    assert "; expected " in text


POOL = "{name: a, selector: {matchLabels: {b: c}}, mode: drain}"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "mode: drain\nreconcilers: {drain: off}",
            'mode: "drain" evicts pods, and reconcilers.drain is false; expected "cordon" or "obs',
        ),
        (
            f"reconcilers: {{drain: false}}\npools: [{POOL}]",
            'pools[0].mode: "drain" evicts pods, and reconcilers.drain is false',
        ),
        (
            "reconcilers: {operations: false}\nrepair: {mode: observe}",
            'repair.mode: "observe" needs reconcilers.operations, which is false; expected "off"',
        ),
    ],
)
def test_a_setting_that_needs_a_reconciler_is_refused_where_that_is_left_out(
    tmp_path: Path, lines: str, said: str
) -> None:
    found = problems(tmp_path, f"{LOCAL}{lines}\n")
    assert any(said in one for one in found)


@pytest.mark.parametrize(
    ("listen", "key"),
    [
        ("{grpc: '0.0.0.0:1', web: 'localhost:2'}", "listen.grpc"),
        ("{grpc: 'localhost:1', web: '10.1.2.3:2'}", "listen.web"),
        ("{grpc: 'localhost:1', web: 'node-7:2'}", "listen.web"),
        ("{grpc: '[2001:db8::1]:1', web: '[::1]:2'}", "listen.grpc"),
        ("{grpc: 'localhost:1', web: 'localhost:1'}", "listen.web"),
        ("{grpc: localhost, web: 'localhost:1'}", "listen.grpc"),
        ("{grpc: ':8443', web: 'localhost:1'}", "listen.grpc"),
        ("{grpc: 'localhost:x', web: 'localhost:1'}", "listen.grpc"),
        ("{grpc: 'localhost:65536', web: 'localhost:1'}", "listen.grpc"),
        ("{grpc: '::1:80', web: 'localhost:1'}", "listen.grpc"),
        ("{grpc: '[x]:80', web: 'localhost:1'}", "listen.grpc"),
        ("{grpc: 'unix:rel', web: 'localhost:1'}", "listen.grpc"),
        (f"{{grpc: 'unix:/{'a' * 107}', web: 'localhost:1'}}", "listen.grpc: this text is to"),
        (f"{{grpc: 'localhost:{'9' * 5000}', web: 'localhost:1'}}", "listen.grpc: this text is no"),
        ("{grpc: 8443, web: 'localhost:1'}", "listen.grpc"),
        ("{grpc: 'localhost:1', web: 'localhost:2', hosts: [a.b, 'http://x']}", "listen.hosts[1]"),
        ("{grpc: 'localhost:1', web: 'localhost:2', hosts: ['a:8080']}", "listen.hosts[0]"),
        ("{grpc: 'localhost:1', web: 'localhost:2', hosts: ['']}", "listen.hosts[0]"),
    ],
)
def test_addresses_that_are_exposed_or_none_are_refused(
    tmp_path: Path, listen: str, key: str
) -> None:
    [problem] = problems(tmp_path, f"listen: {listen}\ncertificates: {{automatic: false}}\n")
    assert problem.startswith(f"1: {key}")


def test_plaintext_to_other_machines_needs_the_word_insecure(tmp_path: Path) -> None:
    exposed = "certificates: {automatic: false}\nlisten: {grpc: '0.0.0.0:1', web: '0.0.0.0:2'%s}\n"
    assert len(problems(tmp_path, exposed % "")) == 2
    load(written(tmp_path, exposed % ", insecure_plaintext: true"))


def test_trusting_an_agents_word_stays_on_this_machine(tmp_path: Path) -> None:
    for name in ("cert", "key"):
        (tmp_path / name).write_text("")
    text = """identity: {kind: insecure-trust-hello}
listen: {grpc: '0.0.0.0:1', tls: {cert_file: cert, key_file: key}%s}
"""
    [problem] = problems(tmp_path, text % "")
    assert problem.startswith("1: identity.kind: ")
    load(written(tmp_path, text % ", insecure_plaintext: true"))
    load(written(tmp_path, LOCAL + "identity: {kind: insecure-trust-hello}\n"))


def test_all_problems_are_said_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """mode: obsrve
limits:
  concurrent: -1
  concurrent: 5
  pool: x
listen:
  grpc: 0.0.0.0:8443
  web: localhost:0
agents: {heartbeat: 40s}
policy:
  file: nope.yaml
certificates: {automatic: false}
"""
    said = [problem.split(":")[:2] for problem in problems(tmp_path, text)]
    assert [(int(line), key.strip()) for line, key in said] == [
        (1, "mode"),
        (3, "limits.concurrent"),
        (4, "limits.concurrent"),
        (5, "limits.pool"),
        (7, "listen.grpc"),
        (9, "agents.silent_after"),
        (11, "policy.file"),
    ]


def test_policies_for_pods_are_refused_where_there_are_none(tmp_path: Path) -> None:
    text = (
        f"{LOCAL}cluster: {{kind: local}}\nidentity: {{kind: insecure-trust-hello}}\n"
        "drain: {namespaces: [{match: '*', policy: never}]}\n"
    )
    [problem] = problems(tmp_path, text)
    assert problem.startswith(
        '4: drain.namespaces: namespaces have pods, and cluster.kind is "local"'
    )


def test_one_section_that_is_wrong_raises_no_false_alarm_about_another(tmp_path: Path) -> None:
    """Without its listen section the file would look as if it spoke plaintext."""
    text = "identity: {kind: certificate}\nlisten: {grpc: '0.0.0.0:1', tls: {cert_file: /x}}\n"
    assert [p.split(":")[1].strip() for p in problems(tmp_path, text)] == ["listen.tls.key_file"]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+asyncpg://sickbay@db.example:5433/sickbay",
        "postgresql+asyncpg://sickbay@[::1]/sickbay",
        "postgresql+asyncpg://sickbay@/sickbay?host=/run/postgresql",
        "sqlite:////var/lib/x.db",
    ],
)
def test_where_history_may_be_kept(tmp_path: Path, url: str) -> None:
    assert (
        load(written(tmp_path, LOCAL + f"history: {{database: '{url}'}}\n")).history.database == url
    )


def test_a_password_in_a_url_is_never_echoed(tmp_path: Path) -> None:
    for url in (
        "postgresql+asyncpg://user:s3cr3t@db/x",
        "postgresql+asyncpg://user:s3cr3t@db:s3cr3t/x",
        "postgresql+asyncpg://user@db/x?password=s3cr3t",
        "postgresql://user:s3cr3t@db/x",
        "mysql://user:s3cr3t@db/x",
    ):
        (said,) = problems(tmp_path, LOCAL + f"history: {{database: '{url}'}}\n")
        assert "history.database: " in said
        assert "s3cr3t" not in said


def test_secrets_are_not_echoed(tmp_path: Path) -> None:
    said = "\n".join(
        problems(
            tmp_path,
            LOCAL
            + "alerts: {receivers: [{name: a, webhook: {url: 'hxxps://hooks.test/s3cr3t', "
            + "secret_file: /dev/null}}]}\n"
            + "history: {database: 'POSTGRES://user:s3cr3t@db/x'}\n",
        )
    )
    assert said.count("; expected ") == 2
    assert "s3cr3t" not in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "drain: {pre_evict: {command: notify --token s3cr3t}}",
            "drain.pre_evict.command: this text; expected a list",
        ),
        (
            "alerts: {receivers: [hooks.test/s3cr3t]}",
            "alerts.receivers[0]: this text; expected a section",
        ),
        (
            "alerts: {receivers: hooks.test/s3cr3t}",
            "alerts.receivers: this text; expected a list",
        ),
        (
            "history: {database: 'user:s3cr3t@db/x'}",
            'history.database: this text; expected "sqlite:///"',
        ),
        (
            "history: {database: host=db password=s3cr3t}",
            'history.database: this text; expected "sqlite:///"',
        ),
        (
            "alerts: {receivers: [{name: !s3cr3t x}]}",
            "alerts.receivers[0].name: a tag that YAML does not have can't be read; expected plain",
        ),
        ("history: {password_file: *s3cr3t }", "1: found undefined alias; expected YAML"),
        ("s3cr3t", "1: this text; expected keys with values"),
    ],
)
def test_what_stands_in_a_wrong_place_is_not_echoed_as_it_may_be_a_secret(
    tmp_path: Path, text: str, says: str
) -> None:
    said = "\n".join(problems(tmp_path, text))
    assert says in said
    assert "s3cr3t" not in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", ":1: "),
        ("a: b: c", ":1: "),
        ("\tmode: observe", ":1: "),
        ("- mode", ":1: a list; expected keys with values"),
        ("just text", ":1: this text; expected keys with values"),
        ("a: &a {b: *a}", ": nested deeper than 20"),
        ("a: " + "[" * 5000, ": nested deeper than 20; expected a flatter file"),
        ("- " * 5000, ": nested deeper than 20; expected a flatter file"),
    ],
)
def test_what_is_no_yaml_is_said_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(written(tmp_path, text))
    assert says in str(refused.value)


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope\.yaml: can't be read: No such file or directory"):
        load(tmp_path / "nope.yaml")
    with pytest.raises(ConfigError, match="it is a directory and no regular file"):
        load(tmp_path)
    (tmp_path / "latin").write_bytes(b"mode: \xe9")
    with pytest.raises(ConfigError, match="byte 6 is not UTF-8"):
        load(tmp_path / "latin")


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    with pipe_with(tmp_path / "pipe", LOCAL) as path:
        yield path


def test_a_pipe_is_refused_before_anybody_waits_for_it(tmp_path: Path, pipe: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: it is a pipe and no regular file"):
        load(pipe)
    with pytest.raises(ConfigError, match="it is a pipe"):
        read_policy(pipe)
    for key, text in {
        "policy.file": f"policy: {{file: {pipe}}}",
        "cluster.kubeconfig": f"cluster: {{kubeconfig: {pipe}}}",
        "history.database": f"history: {{database: 'sqlite:///{pipe}'}}",
        "alerts.outbox": f"alerts: {{outbox: {pipe}}}",
        "identity.keys_cache": f"identity: {{keys_cache: {pipe}}}",
    }.items():
        (said,) = problems(tmp_path, f"{LOCAL}{text}")
        assert key in said
        assert "it is a pipe and no regular file" in said
    (said,) = problems(
        tmp_path,
        f"{LOCAL}identity: {{kind: insecure-trust-hello}}\n"
        f"cluster: {{kind: local, local: {{database: {pipe}}}}}",
    )
    assert f"{pipe} can't be used: it is a pipe and no regular file; expected a file, or n" in said


def test_a_few_aliases_that_unfold_to_a_billion_values_are_refused_at_once(tmp_path: Path) -> None:
    names = "abcdefghij"
    lines = [f"a: &a [{', '.join('x' * 9)}]"]
    for before, name in pairwise(names):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    file = text_file(tmp_path / "rules.yaml", "\n".join([*lines, "rules: *j"]))
    with pytest.raises(ConfigError, match=r"rules\.yaml: its aliases unfold to more than can be r"):
        read_policy(file)


def test_what_is_too_large_to_be_meant_is_refused_and_not_read(tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    huge.touch()
    os.truncate(huge, 1 << 40)
    with pytest.raises(ConfigError, match="can't be read: it has more than 1 MiB"):
        load(huge)
    with pytest.raises(ConfigError, match="can't be read: it has more than 1 MiB"):
        read_policy(huge)
    (said,) = problems(tmp_path, f"{LOCAL}cluster: {{kubeconfig: {huge}}}")
    assert f"cluster.kubeconfig: {huge} can't be read: it has more than 32 MiB; expected a" in said


def test_braces_that_are_a_programs_own_are_left_to_it(tmp_path: Path) -> None:
    words = "[sh, -c, 'a ${node} {} {1..3} %{http_code} {{name}} {{.Id}} {print $1}', '{hook}']"
    config = load(written(tmp_path, f"{LOCAL}\ndrain: {{post_release: {{command: {words}}}}}\n"))
    assert config.drain.post_release.command[-1] == "{hook}"


# -- the readers of the page --------------------------------------------------------------------


ON_FILE = f"{LOCAL}\ncluster: {{kind: local}}\nidentity: {{kind: insecure-trust-hello}}\n"
KUBE = "listen: {tls: {cert_file: tls.crt, key_file: tls.key, client_ca_file: nodes.crt}}\n"
PROXY = "front_proxy: {ca_file: proxy.crt, names: [login]}"
OIDC = (
    "anonymous: false, oidc: {{issuer: '{issuer}', client_id: a, client_secret_file: tokens, "
    "page: '{page}', {more}}}"
)


def oidc(
    issuer: str = "https://idp.test", page: str = "https://page.test", more: str = "viewers: [a]"
) -> str:
    return OIDC.format(issuer=issuer, page=page, more=more)


def test_a_log_in_by_openid_connect_needs_no_file_of_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("x")
    for head in (ON_FILE, "listen: {insecure_plaintext: true}\n"):
        config = load(written(tmp_path, f"{head}\naccess: {{{oidc()}}}\n"))
        assert config.access.oidc is not None
        assert config.access.oidc.session == 3600
    loopback = oidc("http://localhost:5556/dex", "http://127.0.0.1:8080")
    assert load(written(tmp_path, f"{ON_FILE}\naccess: {{{loopback}}}\n")).access.on


@pytest.mark.parametrize(
    ("head", "text", "said"),
    [
        (ON_FILE, "anonymous: false", "access.tokens_file: not given, so that no request could"),
        (ON_FILE, "actions: true", "access.tokens_file: not given, so that no request could"),
        (
            ON_FILE,
            "audiences: [a], tokens_file: tokens",
            "access.audiences: users have rights of an API server",
        ),
        (KUBE, "tokens_file: tokens", "access.tokens_file: static tokens are for a local cluster"),
        (KUBE, "tokens_file: none", "access.tokens_file: "),
        (KUBE, "client_ca_file: nodes.crt", "access.client_ca_file: the CA of the nodes'"),
        (
            KUBE,
            f"client_ca_file: proxy.crt, {PROXY}",
            "access.front_proxy.ca_file: the same CA as access.client_ca_file",
        ),
        (KUBE, "front_proxy: {ca_file: proxy.crt, names: []}", "access.front_proxy.names"),
        (
            "listen: {insecure_plaintext: true}\n",
            PROXY,
            "access.front_proxy: client certificates need TLS",
        ),
        (KUBE, "front_proxy: {ca_file: proxy.crt, names: [a], user_header: 'a b'}", "user_header"),
        *(
            (head, text, f"access.{text.partition(':')[0]}: no request needs an identity")
            for head, text in (
                (ON_FILE, "tokens_file: tokens"),
                (ON_FILE, oidc().removeprefix("anonymous: false, ")),
                (KUBE, "client_ca_file: proxy.crt"),
                (KUBE, PROXY),
                (KUBE, "audiences: [a]"),
            )
        ),
        (ON_FILE, oidc(more=""), "access.oidc.viewers: no group has a role"),
        (ON_FILE, oidc(more="viewers: [a, '']"), "access.oidc.viewers: an empty name"),
        (ON_FILE, oidc(more="operators: [' ']"), "access.oidc.operators: an empty name"),
        (ON_FILE, oidc("http://idp.test"), "access.oidc.issuer: secrets and cookies would go in"),
        (ON_FILE, oidc(page="http://page.test"), "access.oidc.page: secrets and cookies would"),
        (ON_FILE, oidc(page="https://page.test/x"), "access.oidc.page: "),
        (ON_FILE, oidc(page=""), "access.oidc.page: "),
        (ON_FILE, oidc("https://idp.test/?a"), "access.oidc.issuer: "),
        (ON_FILE, oidc(more="viewers: [a], session: 30s"), "access.oidc.session: "),
        (ON_FILE, oidc(more="viewers: [a], session: 2d"), "access.oidc.session: "),
        (ON_FILE, oidc(more="viewers: [a], ca_file: none"), "access.oidc.ca_file: "),
    ],
)
def test_readers_that_could_prove_nothing_or_be_forged_are_refused(
    tmp_path: Path, head: str, text: str, said: str
) -> None:
    for name in ("tls.crt", "tls.key", "nodes.crt", "proxy.crt", "tokens"):
        (tmp_path / name).write_text("x")
    found = problems(tmp_path, f"{head}\naccess: {{{text}}}\n")
    assert any(said in problem for problem in found), found


def test_two_databases_in_one_file_are_refused(tmp_path: Path) -> None:
    text = f"""{LOCAL}
cluster: {{kind: local, local: {{database: {tmp_path}/one.db}}}}
identity: {{kind: insecure-trust-hello}}
history: {{database: "sqlite:///{tmp_path}/one.db"}}
alerts: {{outbox: {tmp_path}/one.db}}
"""
    first, second = problems(tmp_path, text)
    assert "history.database: the same file as cluster.local.database" in first
    assert "alerts.outbox: the same file as cluster.local.database" in second
