"""The report of `sickbay-aggregator config check` and of a start about a configuration file."""

import subprocess
import time
from pathlib import Path

import pytest

from aggregator.config.settings import load
from aggregator.daemon_cli.main import log_removed_bounds
from aggregator.web.tls import Certificate
from tests.aggregator.config_files import LOCAL, written
from tests.support.aggregator_program import AGGREGATOR_COMMANDS
from tests.support.config_check import config_check
from tests.support.fork_server import run_program
from tests.support.pki import Authority, encrypted
from tests.support.text_files import text_file

# -- the command --------------------------------------------------------------------------------


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_program(AGGREGATOR_COMMANDS, arguments, limit=300)


def test_config_check_says_everything_and_exits_2(tmp_path: Path) -> None:
    file = written(tmp_path, "mode: obsrve\nlimits: {concurrent: -1}\n" + LOCAL)
    done = command("config", "check", str(file))
    assert done.returncode == 2
    assert done.stdout == ""
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == [f"{file}:1", f"{file}:2"]
    again = command("run", "--config", str(file))
    assert (again.returncode, again.stderr) == (2, done.stderr)


def test_config_check_of_a_sound_file_exits_0(tmp_path: Path) -> None:
    done = config_check(written(tmp_path, LOCAL))
    assert (done.returncode, done.stderr) == (0, "")
    assert "sound (mode observe, kubernetes cluster)" in done.stdout


def test_config_check_of_another_machines_file_reads_none_that_it_names(tmp_path: Path) -> None:
    text = f"{LOCAL}policy: {{file: /etc/sickbay/elsewhere.yaml}}\n"
    text += "drain: {pre_evict: {command: [/opt/elsewhere]}}\n"
    file = written(tmp_path, text)
    assert "elsewhere.yaml can't be read" in config_check(file).stderr
    done = config_check(file, "--without-files")
    assert (done.returncode, done.stderr) == (0, "")
    assert "sound" in done.stdout
    assert "Not checked: the files and programs that it names." in done.stdout
    wrong = config_check(written(tmp_path, text + "mode: obsrve\n"), "--without-files")
    assert (wrong.returncode, wrong.stdout) == (2, "")


def test_config_check_reads_the_policy_too(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("rules: nonsense\n")
    file = written(tmp_path, LOCAL + "policy: {file: policy.yaml}\n")
    done = config_check(file)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{tmp_path}/policy.yaml:1: ")


def test_config_check_names_a_condition_whose_rule_does_not_exist(tmp_path: Path) -> None:
    entry = "conditions: [{type: A, rules: [gpu-fatel, 'disk-*'], unhealthy: 'True'}]\n"
    done = config_check(written(tmp_path, LOCAL + entry))
    assert done.returncode == 2
    text = 'conditions[0].rules: no rule is named "gpu-fatel" (did you mean "gpu-fatal"?)'
    assert text in done.stderr


def test_config_check_refuses_a_rule_about_a_condition_that_sickbay_writes(tmp_path: Path) -> None:
    rule = "{name: a, kind: node, condition: A, action: cordon}"
    (tmp_path / "policy.yaml").write_text(f"rules: [{rule}]\n")
    entry = "policy: {file: policy.yaml}\nconditions: [{type: A, rules: [a], unhealthy: 'True'}]\n"
    done = config_check(written(tmp_path, LOCAL + entry))
    assert done.returncode == 2
    assert "policy.file: rule 'a' is about the node condition A, which `conditions`" in done.stderr


def test_config_check_reads_certificates_and_says_which_are_none(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "pki")
    pair, other = (authority.server(name, ["localhost"]) for name in ("one", "other"))
    text = """
listen: {tls: {cert_file: %s, key_file: %s}}
cluster: {kind: local, store: {database: postgresql+asyncpg://u@db.test/c, ca_file: %s}}
identity: {kind: insecure-trust-hello}
history:
  database: postgresql+asyncpg://u@db.test/h
  ca_file: %s
"""
    text = text.replace("listen: {", "listen: {grpc: 'localhost:0', web: 'localhost:0', ")
    ca = authority.certificate
    done = command(
        "config", "check", str(written(tmp_path, text % (pair.certificate, pair.key, ca, ca)))
    )
    assert (done.returncode, done.stderr) == (0, "")

    file = written(tmp_path, text % (pair.certificate, other.key, pair.key, pair.key))
    done = config_check(file)
    assert (done.returncode, done.stdout) == (2, "")
    first, store, second = done.stderr.splitlines()
    assert store.startswith(f"{file}:3: cluster.store.ca_file: {pair.key} holds no certificate")
    said = f"{file}:2: listen.tls: {other.key} is not the key of {pair.certificate}; expected a c"
    assert first.startswith(said)
    assert second.startswith(
        f"{file}:7: history.ca_file: {pair.key} holds no certificate; expected PEM"
    )
    assert "X509" not in second


def test_config_check_reads_the_files_of_receivers(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "pki")
    pair, other = (authority.server(name, ["localhost"]) for name in ("one", "other"))
    text = """
listen: {grpc: "localhost:0", web: "localhost:0"}
cluster: {kind: local}
identity: {kind: insecure-trust-hello}
alerts:
  receivers:
    - {name: chat, slack: {url_file: %s}}
    - name: am
      alertmanager: {url: "http://am", http: {ca_file: %s, cert_file: %s, key_file: %s}}
    - {name: mail, email: {smarthost: "m:25", sender: a@b.c, to: [d@e.f], ca_file: %s}}
"""
    url = text_file(tmp_path / "url", "https://hooks.test/s3cr3t\n")
    ca = authority.certificate
    sound = written(tmp_path, text % (url, ca, pair.certificate, pair.key, ca))
    done = config_check(sound)
    assert (done.returncode, done.stderr) == (0, "")

    url.write_text("s3cr3t")
    file = written(tmp_path, text % (url, ca, pair.certificate, other.key, pair.key))
    done = config_check(file)
    assert (done.returncode, done.stdout) == (2, "")
    first, second, third = done.stderr.splitlines()
    assert first.startswith(
        f"{file}:7: alerts.receivers[0].slack.url_file: url_file {url} holds no"
    )
    assert f"alerts.receivers[1].alertmanager.http: cert_file {pair.certificate} can't be" in second
    assert f"alerts.receivers[2].email: ca_file: {pair.key} holds no certificate" in third
    assert "s3cr3t" not in done.stderr
    started = command("run", "--config", str(file))
    assert (started.returncode, started.stderr) == (2, done.stderr)


def test_config_check_refuses_an_address_that_the_certificate_does_not_cover(
    tmp_path: Path,
) -> None:
    """A start would end with it; in a domain it depends on the host."""
    authority = Authority.create(tmp_path / "pki")
    pair = authority.server("aggregator", ["one.test"])
    (tmp_path / "token").write_text("x")
    text = (
        f"listen: {{tls: {{cert_file: {pair.certificate}, key_file: {pair.key}}}}}\n"
        f"replicas: {{address: '%s:1', token_file: token, ca_file: {authority.certificate}}}\n"
    )
    sound = config_check(written(tmp_path, text % "one.test"))
    assert sound.returncode == 0, sound.stderr
    file = written(tmp_path, text % "two.test")
    done = config_check(file)
    assert done.returncode == 2
    assert f"{file}:2: replicas.address: listen.tls.cert_file {pair.certificate}" in done.stderr
    assert "is for one.test, and gateways know this replica as two.test" in done.stderr


def test_config_check_warns_of_rules_that_can_have_no_effect(tmp_path: Path) -> None:
    rule = "{name: mine, kind: disk, check: disk-spaze, action: cordon, why: x}"
    (tmp_path / "policy.yaml").write_text(f"rules: [{rule}]\n")
    done = command(
        "config", "check", str(written(tmp_path, LOCAL + "policy: {file: policy.yaml}\n"))
    )
    assert done.returncode == 0
    assert done.stderr.startswith(f"{tmp_path}/policy.yaml:1: warning: rules[0].check: ")


def test_config_check_warns_of_programs_that_are_not_here(tmp_path: Path) -> None:
    text = """
cluster:
  kind: local
  local:
    commands:
      cordon: [/no/such/scontrol, "{node}"]
      release: [sh, -c, "true"]
identity: {kind: insecure-trust-hello}
drain:
  pre_evict:
    command: [no-such-program-of-slurm, "{node}"]
"""
    file = written(tmp_path, LOCAL + text)
    done = config_check(file)
    assert done.returncode == 0
    cordon, hook = done.stderr.splitlines()
    said = "warning: cluster.local.commands.cordon: no program can be run here as"
    assert cordon.startswith(f"{file}:7: {said} '/no/such/scontrol'; ")
    assert hook.startswith(f"{file}:12: warning: drain.pre_evict.command: ")
    text = (
        "identity: {kind: insecure-trust-hello}\ncluster: {kind: slurm, slurm: {programs: /none}}"
    )
    done = config_check(written(tmp_path, LOCAL + text))
    assert f"{file}:3: warning: cluster.slurm.programs: no program can be run here" in done.stderr


@pytest.mark.parametrize(
    ("policy", "says"),
    [(b"rules: \xe9", "byte 7 is not UTF-8"), (b"a: " + b"[" * 5000, "nested deeper than 20")],
)
def test_a_policy_that_is_no_text_or_has_no_end_is_refused(
    tmp_path: Path, policy: bytes, says: str
) -> None:
    (tmp_path / "policy.yaml").write_bytes(policy)
    file = written(tmp_path, LOCAL + "policy: {file: policy.yaml}\n")
    done = config_check(file)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{tmp_path}/policy.yaml: {says}; expected ")


def test_a_port_in_use_is_said_without_a_traceback(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        file = written(
            tmp_path,
            f"""listen: {{grpc: '127.0.0.1:{port}', web: 'localhost:0'}}
cluster: {{kind: local, local: {{database: {tmp_path}/cluster.db}}}}
identity: {{kind: insecure-trust-hello}}
history: {{database: 'sqlite:///{tmp_path}/history.db'}}
""",
        )
        done = command("run", "--config", str(file))
    assert done.returncode == 1
    [said] = done.stderr.splitlines()  # and no line of gRPC's own
    assert said.startswith(f'sickbay-aggregator: can\'t listen on "127.0.0.1:{port}"')
    assert "another process listens there already" in said
    assert all(line.startswith("{") for line in done.stdout.splitlines()), done.stdout


def test_a_start_with_a_certificate_that_cant_be_used_ends_in_words(tmp_path: Path) -> None:
    """The page reads it first, and OpenSSL would name neither the file nor the fault."""
    pair = Authority.create(tmp_path / "pki").server("aggregator", ["localhost"])
    key = tmp_path / "key.pem"
    key.write_bytes(encrypted(pair.key))
    text = f"""listen:
  grpc: '127.0.0.1:0'
  web: '127.0.0.1:0'
  tls: {{cert_file: {pair.certificate}, key_file: {key}}}
cluster: {{kind: local, local: {{database: {tmp_path}/cluster.db}}}}
identity: {{kind: insecure-trust-hello}}
history: {{database: 'sqlite:///{tmp_path}/history.db'}}
alerts: {{outbox: {tmp_path}/outbox.db}}
"""
    for _ in range(2):
        done = command("run", "--config", str(written(tmp_path, text)))
        assert done.returncode == 1
        [said] = done.stderr.splitlines()
        assert said.startswith(f"sickbay-aggregator: {key} is no private key in PEM: ")
        key.write_text("junk")


def test_the_page_asks_nobody_for_the_passphrase_of_a_renewed_key(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """OpenSSL would wait for one at the terminal, and stop all other work meanwhile."""
    pair = Authority.create(tmp_path / "pki").server("aggregator", ["localhost"])
    key = tmp_path / "key.pem"
    key.write_bytes(encrypted(pair.key))
    with pytest.raises(OSError, match=r"."):
        Certificate(pair.certificate, key, wall=time.time)
    assert capfd.readouterr() == ("", "")


UNBOUNDED = """
limits: {concurrent: 100000, concurrent_percent: "100%", new_per_window: 1000, \
new_per_window_percent: "100%", quorum_percent: "0%", common_cause_percent: "100%", \
common_cause_nodes: 100000, cooldown: "0s"}
"""


REMOVED = (
    "limits.concurrent",
    "limits.new_per_window",
    "limits.common_cause_percent",
    "limits.cooldown",
    "limits.quorum_percent",
)


def test_config_check_refuses_a_file_without_bounds(tmp_path: Path) -> None:
    """It called such a file sound, without a word."""
    drain = f"{LOCAL}\nmode: drain\n"
    done = config_check(written(tmp_path, drain + UNBOUNDED))
    assert (done.returncode, done.stdout) == (2, "")
    for key in REMOVED:
        assert f"{key}: " in done.stderr
        assert f"expected a bound, or {key} in accept_removed_bounds" in done.stderr
    for harmless in (drain, f"{LOCAL}\n{UNBOUNDED}"):
        done = config_check(written(tmp_path, harmless))
        assert "WITHOUT" not in done.stdout
        assert (done.returncode, done.stderr) == (0, "")


def test_a_bound_that_a_person_accepts_by_name_is_a_warning(tmp_path: Path) -> None:
    drain = f"{LOCAL}\nmode: drain\n{UNBOUNDED}"
    *most, last = REMOVED
    done = config_check(written(tmp_path, f"{drain}accept_removed_bounds: [{', '.join(most)}]\n"))
    assert done.returncode == 2
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [last]
    done = config_check(
        written(tmp_path, f"{drain}accept_removed_bounds: [{', '.join(REMOVED)}]\n")
    )
    assert done.returncode == 0
    assert "WITHOUT 5 of its bounds" in done.stdout
    for key in REMOVED:
        assert f"warning: {key}: " in done.stderr
    done = config_check(written(tmp_path, f"{drain}accept_removed_bounds: [limits.window]\n"))
    assert done.returncode == 2
    assert "accept_removed_bounds[0]" in done.stderr


def test_a_start_logs_each_bound_that_is_removed_and_not_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    accepted = f"accept_removed_bounds: [{', '.join(REMOVED[:-1])}]\n"
    log_removed_bounds(load(written(tmp_path, f"{LOCAL}\nmode: drain\n{UNBOUNDED}{accepted}")))
    [record] = caplog.records
    assert (record.levelname, vars(record)["event"]) == ("WARNING", "config.bound_removed")
    assert vars(record)["key"] == REMOVED[-1]


@pytest.mark.parametrize(("given", "warns"), [("", True), ("access: {anonymous: true}", False)])
def test_config_check_warns_of_a_page_that_is_open_because_its_key_is_not_given(
    tmp_path: Path, given: str, *, warns: bool
) -> None:
    done = config_check(written(tmp_path, f"mode: cordon\n{given}\n"))
    assert done.returncode == 0
    assert ("warning: access.anonymous: not given: every" in done.stderr) is warns


def test_config_check_warns_of_labels_that_a_kubelet_may_set(tmp_path: Path) -> None:
    own = "node-restriction.kubernetes.io/pool"
    text = """
limits:
  {pool_label: %s, clique_label: clique, \
domain_labels: [topology.kubernetes.io/zone, topology.kubernetes.io/rack]}
pools:
  - {name: a, selector: {matchLabels: {%s: a}}}
"""
    listen = "listen: {insecure_plaintext: true}\n"
    done = config_check(written(tmp_path, listen + text % ("example.test/pool", "example.test/p")))
    assert done.returncode == 0
    for key in ("pool_label", "domain_labels", "clique_label"):
        assert f"warning: limits.{key}: a kubelet may set the label" in done.stderr
    assert "warning: pools[0].selector: a kubelet may set the label" in done.stderr
    assert "topology.kubernetes.io/zone on its own Node" in done.stderr
    assert "topology.kubernetes.io/rack" not in done.stderr
    done = config_check(
        written(
            tmp_path,
            listen + (text.replace("/zone", "/row").replace(": clique", f": {own}")) % (own, own),
        )
    )
    assert "a kubelet may set" not in done.stderr
    # Neither domain is Kubernetes' own, so NodeRestriction lets a kubelet set both.
    done = config_check(written(tmp_path, listen + text % ("mykubernetes.io/pool", "notk8s.io/p")))
    assert "warning: limits.pool_label: a kubelet may set the label" in done.stderr
    assert "warning: pools[0].selector: a kubelet may set the label" in done.stderr
