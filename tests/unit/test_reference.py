"""docs/reference is what the code gives, and its schemas agree with the loaders."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from aggregator.config.settings import load
from aggregator.daemon_cli.main import main
from aggregator.events import EventKind
from nodeagent.config.settings import keys
from release.reference.__main__ import FOLDER, files, place
from release.reference.config_schema import config_schema, properties
from release.reference.tables import code, rows
from tests.aggregator.config_files import keys_of
from tests.support.yaml_documents import read_documents, read_yaml
from tests.unit.test_public_names import aggregator_metrics

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    return dict(files())


def read(name: str) -> Any:
    return json.loads(place(name).read_text("utf-8"))


@pytest.mark.slow
def test_every_file_is_as_the_code_writes_it(written: dict[str, str]) -> None:
    found = {path.name for path in FOLDER.iterdir()}
    assert found == {name for name in written if place(name).parent == FOLDER}
    stale = [name for name, text in written.items() if place(name).read_text("utf-8") != text]
    assert stale == [], "run make docs-reference"


def test_no_link_is_in_backticks(written: dict[str, str]) -> None:
    text = "\n".join(text for name, text in written.items() if name.endswith(".md"))
    assert re.findall(r"`\[\w[^`]*\]\([^`]*`", text) == []


def test_the_page_of_metrics_has_each_with_its_type() -> None:
    lines = (FOLDER / "metrics.md").read_text("utf-8")
    found = {code(row[0]): row[1] for row in rows(lines)}
    assert found == aggregator_metrics()


def test_the_page_of_events_has_each_kind() -> None:
    lines = (FOLDER / "events.md").read_text("utf-8")
    assert [code(row[0]) for row in rows(lines)] == sorted(kind.value for kind in EventKind)


# -- the aggregator's file --------------------------------------------------------


def test_the_schema_has_every_key_with_its_meaning() -> None:
    from aggregator.config.settings import Config

    found = properties(read("aggregator.schema.json"))
    assert found.keys() == set(keys_of(Config))
    unexplained = {key for key, one in found.items() if not one.get("description")}
    # Two keys of the reference are explained by the row above, or by that of their route.
    assert len(unexplained) < 20, sorted(unexplained)


def valid(text: str) -> bool:
    schema = jsonschema.Draft7Validator(read("aggregator.schema.json"))
    return schema.is_valid(read_yaml(text))


@pytest.mark.slow
def test_the_shipped_files_are_valid() -> None:
    assert valid((ROOT / "deploy" / "aggregator.yaml").read_text())
    jsonschema.Draft7Validator.check_schema(read("aggregator.schema.json"))
    for path in (ROOT / "deploy").rglob("*.yaml"):
        if "helm" in path.parts:
            continue
        for document in read_documents(path.read_text()):
            if isinstance(document, dict) and document.get("kind") == "ConfigMap":
                for name, text in document.get("data", {}).items():
                    assert name != "aggregator.yaml" or valid(text), path


@pytest.mark.parametrize(
    "text",
    [
        "mode: dran",
        "limits: {concurent: 5}",
        "limits: {pool_percent: 5}",
        "limits: {concurrent: 0}",
        "agents: {heartbeat: 10}",
        "agents: {heartbeat: 10 s}",
        "alerts: {receivers: [{name: UPPER}]}",
        "documentation_url: docs.example.com",
    ],
)
def test_mistakes_of_one_key_are_marked(text: str) -> None:
    assert not valid(text)


def defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """As a file would have them, without sections that need keys which have no default."""
    found: dict[str, Any] = {}
    for name, one in schema["properties"].items():
        if one.get("type") == "object" and "properties" in one and not one.get("required"):
            found[name] = defaults(one)
        elif one.get("default", "") != "":
            found[name] = one["default"]
    return found


def test_the_defaults_of_the_schema_are_the_defaults(tmp_path: Path) -> None:
    chosen = defaults(config_schema())
    del chosen["drain"]["pre_evict"], chosen["drain"]["post_release"]  # a hook needs a program
    del chosen["repair"]["idle_nodes"]  # that it is there has idle nodes tested
    chosen["listen"] |= {"insecure_plaintext": True}  # its defaults need TLS
    file, plain = tmp_path / "all.yaml", tmp_path / "plain.yaml"
    file.write_text(yaml.safe_dump(chosen))
    plain.write_text("listen: {insecure_plaintext: true}\n")
    assert load(file, environ={}) == load(plain, environ={})


@pytest.mark.slow
def test_the_command_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["config", "schema"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out) == read("aggregator.schema.json")


# -- the agent's file ---------------------------------------------------------------


def test_the_agents_schema_has_every_key_but_those_that_are_refused() -> None:
    found = properties(read("agent.schema.json"))
    missing = {key for key in keys() if key not in found}
    tables = {key for key in missing if any(one.startswith(f"{key}.") for one in keys())}
    refused = {key for key in missing - tables if key.endswith((".interval", ".deadline"))}
    assert missing == tables | refused
    assert found.keys() - set(keys()) == set()


def agent_is_valid(text: str) -> bool:
    return jsonschema.Draft7Validator(read("agent.schema.json")).is_valid(tomllib.loads(text))


def test_the_agents_shipped_file_is_valid() -> None:
    jsonschema.Draft7Validator.check_schema(read("agent.schema.json"))
    assert agent_is_valid((ROOT / "deploy" / "agent.toml").read_text())


@pytest.mark.parametrize(
    "text",
    [
        'log_level = "loud"',
        '[expect]\ngpus = "8"',
        "[nvml]\ndeadline = 10",
        '[checks.disk-space]\ninterval = "30"',
        '[repair]\nallow = ["reset"]',
        "[checks.nothing]\non = true",
    ],
)
def test_mistakes_in_the_agents_file_are_marked(text: str) -> None:
    assert not agent_is_valid(text)


def test_each_default_of_the_agent_is_of_its_keys_own_form() -> None:
    for key, one in properties(read("agent.schema.json")).items():
        validator = jsonschema.Draft7Validator(one)
        assert "default" not in one or validator.is_valid(one["default"]), key


def test_the_agents_file_may_have_checks_of_its_own() -> None:
    assert agent_is_valid('[checks.disk-space]\ninterval = "1m30s"\n[own.mine]\ncommand = ["true"]')


def test_the_agents_file_may_allow_repairs() -> None:
    assert agent_is_valid('[repair]\nallow = ["gpu-reset", "reboot", "test"]')
