"""Pools on the command line: warnings, questions, and the effect of rules on each pool."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from aggregator.daemon_cli.main import main
from tests.aggregator.test_replay import record
from tests.support.text_files import text_file

CONFIG = """mode: cordon
identity: {kind: insecure-trust-hello}
listen: {grpc: "127.0.0.1:0", web: "127.0.0.1:0"}
history: {database: "sqlite:///FOLDER/history.db"}
pools:
  - name: canary
    selector: {matchLabels: {pool: canary}}
    mode: drain
"""
SITE = """rules:
  - name: gpu-person
    action: drain
    nodes: {matchLabels: {pool: canary}}
    elsewhere: observe
"""


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return text_file(tmp_path / "aggregator.yaml", CONFIG.replace("FOLDER", str(tmp_path)))


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return text_file(tmp_path / "policy.yaml", SITE)


def nodes(tmp_path: Path, **pools: str) -> str:
    """A file as `kubectl get nodes -o json` writes it."""
    file = tmp_path / "nodes.json"
    items = [
        {"kind": "Node", "metadata": {"name": name, "labels": {"pool": pool} if pool else None}}
        for name, pool in pools.items()
    ]
    file.write_text(json.dumps({"kind": "List", "items": items}))
    return str(file)


def test_a_replay_shows_the_effect_on_each_pool_as_its_mode_caps_it(
    tmp_path: Path, config: Path, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(record(f"sqlite:///{tmp_path}/history.db"))
    asked = ("policy", "replay", str(policy), "--config", str(config))
    code, out, _ = command(capsys, *asked, "--nodes", nodes(tmp_path, n1="canary"))
    assert code == 1
    assert "cordon becomes drain" in out
    lines = [line.split() for line in out.splitlines() if line.startswith("  canary ")]
    [canary] = lines
    assert canary[1:4] == ["drain", "1", "cordon"]
    assert "becomes 1 drain" in " ".join(canary)
    [default] = [line for line in out.splitlines() if line.startswith("  default ")]
    assert default.split()[1] == "cordon"
    assert default.count("no action") == 2

    other = nodes(tmp_path, n1="other")
    pipe, end = os.pipe()  # as of <(kubectl get nodes -o json)
    os.write(end, Path(other).read_bytes())
    os.close(end)
    code, out, _ = command(capsys, *asked, "--nodes", f"/dev/fd/{pipe}", "-o", "json")
    os.close(pipe)
    told = {one["name"]: one for one in json.loads(out)["pools"]}
    assert told["default"]["mode"] == "cordon"
    assert told["default"]["before"]["by_action"] == {"cordon": 1}
    assert told["default"]["after"]["by_action"] == {}
    assert told["canary"]["before"]["by_action"] == {}
    assert code == 1

    policy.write_text("rules: [{name: gpu-person, action: drain}]\n")
    code, out, _ = command(capsys, *asked, "--nodes", other, "-o", "json")
    told = {one["name"]: one for one in json.loads(out)["pools"]}
    assert told["default"]["after"]["by_action"] == {"cordon": 1}, "capped by the pool's mode"
    code, out, _ = command(capsys, *asked, "--nodes", nodes(tmp_path, n2=""), "-o", "json")
    told = {one["name"]: one for one in json.loads(out)["pools"]}
    assert told["unknown"]["before"]["by_action"] == {"cordon": 1}


def test_a_replay_without_labels_says_so_and_takes_the_milder_action(
    tmp_path: Path, config: Path, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(record(f"sqlite:///{tmp_path}/history.db"))
    code, out, err = command(capsys, "policy", "replay", str(policy), "--config", str(config))
    assert code == 1
    assert "cordon becomes observe" in out
    assert "expected --nodes FILE, the output of: kubectl get nodes -o json" in err
    assert "by pool" not in out


@pytest.mark.parametrize(
    "text", ["", "{}", '{"items": 3}', '{"items": [{"metadata": {}}]}', "\0", "[" * 100_000]
)
def test_a_file_that_is_no_list_of_nodes_is_refused(
    tmp_path: Path, config: Path, policy: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = text_file(tmp_path / "nodes.json", text)
    asked = ("policy", "replay", str(policy), "--config", str(config), "--nodes", str(file))
    code, _, err = command(capsys, *asked)
    assert code == 2
    assert f"{file} is no list of nodes; expected the output of: kubectl get nodes -o json" in err
    file.unlink()
    code, _, err = command(capsys, *asked)
    assert code == 2
    assert "can't be read: No such file" in err


def test_an_explanation_names_the_pool_and_what_the_rule_does_there(
    config: Path, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("policy", "explain", "--policy", str(policy), "--fault", "xid:54")
    code, out, _ = command(capsys, *asked, "--config", str(config), "--label", "pool=canary")
    assert code == 0
    assert "  pool       canary, mode drain\n" in out
    assert "  action     drain, by rule gpu-person\n" in out
    assert "  nodes      its own action on pool=canary; elsewhere: observe\n" in out
    code, out, _ = command(
        capsys, *asked, "--config", str(config), "--label", "pool=b", "-o", "json"
    )
    told = json.loads(out)
    assert (told["pool"], told["mode"], told["action"]) == ("default", "cordon", "observe")
    assert (told["nodes"], told["elsewhere"]) == ("pool=canary", "observe")
    code, out, _ = command(capsys, *asked)
    assert "  pool " not in out
    assert "  action     drain, by rule gpu-person\n" in out
    code, _, err = command(capsys, *asked, "--label", "pool")
    assert code == 2
    assert "expected KEY=VALUE" in err


def test_pools_without_effect_are_warned_of_with_their_line(
    config: Path, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(
        config.read_text()
        + "  - {name: again, selector: {matchLabels: {pool: canary, rack: r1}}}\n"
        + "  - name: never\n"
        + "    selector:\n"
        + "      matchLabels: {a: b}\n"
        + "      matchExpressions: [{key: a, operator: NotIn, values: [b]}]\n"
        + "  - {name: fine, selector: {}}\n"
    )
    for words in (("policy", "check", str(policy), "--config", str(config)),):
        code, _, err = command(capsys, *words)
        assert code == 0
        first, second = err.splitlines()
        assert first.startswith(f"{config}:9: warning: pools[1].selector: selects no node: ")
        assert "the earlier pool canary selects all of them" in first
        assert second.startswith(f"{config}:11: warning: pools[2].selector: selects no node: ")
        assert command(capsys, *words, "--strict")[0] == 1
    code, _, err = command(capsys, "config", "check", str(config))
    assert code == 0
    assert err.count("selector: selects no node") == 2


def test_a_pool_of_every_node_that_is_more_than_the_files_mode_is_warned_of(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = config.read_text()
    config.write_text(text.replace("{matchLabels: {pool: canary}}", "{}"))
    code, _, err = command(capsys, "config", "check", str(config))
    assert code == 0
    assert "warning: pools[0].selector: selects every node that no earlier pool does" in err
    config.write_text(
        text.replace("{matchLabels: {pool: canary}}", "{}").replace("drain", "observe")
    )
    assert "warning: pools" not in command(capsys, "config", "check", str(config))[2]


def test_a_selector_whose_lines_are_commented_out_does_not_select_the_fleet(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(
        config.read_text().replace("{matchLabels: {pool: canary}}", "{matchLabels: }")
    )
    code, _, err = command(capsys, "config", "check", str(config))
    assert code == 2
    assert "pools[0].selector.matchLabels: nothing; expected" in err


@pytest.mark.parametrize(
    ("pool", "says"),
    [
        ("{name: Canary, selector: {}}", 'pools[0].name: "Canary"; expected a name of small'),
        ("{name: default, selector: {}}", 'pools[0].name: "default" names the nodes that no pool'),
        ("{name: a}", "pools[0].selector: missing"),
        ("{name: a, selector: {}, mode: drian}", "expected observe, cordon or drain (did you mean"),
        ("{name: a, selector: {}, limits: {concurrent: 0}}", "pools[0].limits.concurrent: 0; exp"),
        ("{name: a, selector: {}, limits: {new_per_window: 5001}}", "expected at most 5000"),
        ("{name: a, selector: {}}, {name: a, selector: {}}", "expected each name once"),
        ("{name: a, selector: {matchLabels: {p: [x]}}}", "pools[0].selector.matchLabels.p: a list"),
    ],
)
def test_a_pool_that_is_wrong_is_refused_with_its_place(
    config: Path, capsys: pytest.CaptureFixture[str], pool: str, says: str
) -> None:
    config.write_text(config.read_text().partition("pools:")[0] + f"pools: [{pool}]\n")
    code, _, err = command(capsys, "config", "check", str(config))
    assert code == 2
    assert says in err


def test_a_cluster_without_labels_has_no_pools(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(config.read_text() + "cluster: {kind: local}\n")
    code, _, err = command(capsys, "config", "check", str(config))
    assert code == 2
    assert 'no node of it has labels, and cluster.kind is "local"' in err


def test_rules_whose_action_no_node_gets_are_noted_and_are_no_warning(
    capsys: pytest.CaptureFixture[str], config: Path, policy: Path
) -> None:
    line = ("policy", "check", str(policy), "--config", str(config), "--strict")
    assert "note" not in command(capsys, *line)[2]
    config.write_text(config.read_text().replace("mode: drain", "mode: cordon"))
    own = "{name: own, kind: disk, check: disk-space, for: 1s, action: cordon, repair: [reboot]}"
    policy.write_text(f"{SITE}  - {own}\n")
    code, _, err = command(capsys, *line)
    assert (code, err.splitlines()) == (
        0,
        [
            f"{config}:1: note: mode: no node has a mode above cordon, to which it caps gpu-person",
            f'{config}:1: note: repair.mode: with "off" no repair begins by own',
        ],
    )
    config.write_text(config.read_text().replace("mode: cordon", "mode: observe"))
    assert "above observe, to which it caps gpu-person, own" in command(capsys, *line)[2]
