"""Each command and each configuration example of the documents, by the program's own parsers.

Placeholders: a word in capitals (NODE, FILE, NAME), "..." and "$VARIABLE" are values; [WORD] may be
left out; a|b is a choice; two blanks or a # end a command in a block.
"""

import argparse
import functools
import itertools
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from aggregator.cli import command_line
from aggregator.cli.command_words import own_words
from aggregator.config import settings as aggregator_settings
from aggregator.configfile.yaml_source import ConfigError
from aggregator.daemon_cli import main as aggregator_main
from aggregator.policy.defaults import read_policy
from nodeagent.active_tests import profile
from nodeagent.checks import registry
from nodeagent.config import settings as agent_settings
from nodeagent.simulate import events
from nodeagent.terminal import arguments
from nodeagent.terminal.run_arguments import BadUsage
from tests.deploy.manifests import ROOT
from tests.deploy.test_docs import PAGES
from tests.support.text_files import text_file
from tests.support.yaml_documents import read_yaml

#: Made by `make docs-reference` from these parsers.
WRITTEN = sorted(name for name in PAGES if "reference" not in name.parts)
CHART = ROOT / "deploy" / "helm" / "sickbay"
PROGRAMS = {
    "sickbay": lambda: command_line.parser_for("sickbay", {}),
    "sickbay-agent": arguments.parser,
    "sickbay-aggregator": aggregator_main.parser,
}
#: A value for a placeholder, by its word; any other word in capitals is a name.
VALUES = {"COMMAND": "status", "KIND": "reboot", "...": "text"}
_CODE = re.compile(r"^[ >]*```(\w*)\n(.*?)^[ >]*```|`([^`]+)`", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(
    r"^(?:while |until |! |\$ )*(?:kubectl -n \S+ exec \S+ -- |kubectl (?=sickbay ))?"
    r"(?:/\S*/|\.venv/bin/)?(sickbay(?:-agent|-aggregator)?)((?: +\S.*)?)$"
)
_SEPARATORS = re.compile(r" \|(?= )(?![^[]*\])| \|\| | && |; |;$| & | &$|\$\(")


@dataclass(frozen=True)
class Example:
    """``at``: page and line. ``block``: of a block of code, not in the text."""

    at: str
    text: str
    block: str | None = None


def examples() -> Iterator[Example]:
    for name in WRITTEN:
        text = (ROOT / name).read_text("utf-8")
        for found in _CODE.finditer(text):
            at = f"{name}:{text[: found.start()].count(chr(10)) + 1}"
            if found[2] is None:
                yield Example(at, " ".join(found[3].split()))
            else:
                yield Example(at, found[2], found[1] or "text")


def commands() -> Iterator[tuple[str, str, str]]:
    """(where, program, arguments) of each command of ours."""
    for example in examples():
        if example.block in ("yaml", "toml", "python", "mermaid", "json"):
            continue
        lines = [example.text]
        if example.block is not None:
            lines = re.sub(r"\\\n *", "", example.text).splitlines()
        for line in lines:
            for part in _SEPARATORS.split(line.strip()):
                command = _COMMAND.match(part.strip().rstrip(")"))
                if command is not None and not command[2].startswith(" needs "):  # a message
                    text = re.split(r" {2,}\S| *#|(?: [0-9]?[<>]|2>)", command[2].strip())[0]
                    yield example.at, command[1], text.strip()


COMMANDS = sorted(set(commands()))


def choices(text: str) -> Iterator[list[str]]:
    """Each command of a form with [optional] parts and alternatives."""
    parts = re.split(r"(\[[^]]*\])", text)
    options = [["", *part[1:-1].split(" | ")] if part.startswith("[") else [part] for part in parts]
    for form in itertools.product(*options):
        words = shlex.split(" ".join(form))
        yield from (list(one) for one in itertools.product(*map(_values, words)))


def _values(word: str) -> list[str]:
    if re.fullmatch(r"[\w-]+(?:\|[\w-]+)+", word):
        return [value for one in word.split("|") for value in _values(one)]
    if word in VALUES:
        return [VALUES[word]]
    if re.fullmatch(r"[A-Z][A-Z-]+", word):
        return [word.lower()]
    if word.startswith("$"):
        return ["node-1"]
    return [word]


@functools.cache
def parser_of(program: str) -> argparse.ArgumentParser:
    return PROGRAMS[program]()


def refusal(program: str, words: list[str]) -> str:
    """The parser's refusal, or empty."""
    try:
        own = own_words(words) if program == "sickbay" else words
        parser_of(program).parse_args(own)
    except SystemExit as ended:
        return "" if not ended.code else "refused"
    except BadUsage as error:
        return str(error)
    return ""


def is_name_alone(words: list[str]) -> bool:
    """Whether the text names a command, without arguments."""
    return all(re.fullmatch(r"[a-z][a-z-]*", word) for word in words)


@pytest.mark.parametrize(("at", "program", "text"), COMMANDS)
def test_each_command_is_one_that_the_program_takes(
    at: str, program: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in choices(text):
        if not words:
            continue
        if text.endswith(" ..."):  # the beginning of a command
            problem = refusal(program, [*words[: words.index(VALUES["..."])], "--help"])
        else:
            problem = refusal(program, words)
        if problem and is_name_alone(words):
            problem = refusal(program, [*words, "--help"])
        assert not problem, (
            f"{at}: {program} {shlex.join(words)}: {problem}{capsys.readouterr().err}"
        )


def test_a_command_with_a_wrong_option_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(COMMANDS) > 100
    assert refusal("sickbay", ["quarantine", "node-1", "--act", "drain"])
    assert refusal("sickbay", ["unknown", "--help"])
    assert refusal("sickbay-agent", ["clear"])
    assert refusal("sickbay-aggregator", ["policy", "explain", "--fault"])
    assert "usage" in capsys.readouterr().err


# -- configuration ---------------------------------------------------------------------------------

#: The first keys of blocks that are files of other programs.
OTHERS = {
    "apiVersion",
    "patches",
    "replicas",
    "scrape_configs",
    "tolerations",
    "project",
}
CONFIGURATIONS = [one for one in examples() if one.block in ("yaml", "toml")]


def check_aggregator(text: str, folder: Path) -> None:
    """By the real loader; the files that it names are made below ``folder``."""
    root = folder / "root"
    named = {root / name[1:] for name in re.findall(r"(?<![\w:/.])/[\w./-]+", text)}
    named |= {root / str(folder)[1:] / name for name in re.findall(r"_file: ([\w.-]+)", text)}
    for path in (root / "var/run/secrets/sickbay-replicas/token", *sorted(named)):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text("https://hooks.example.com/one\n")
    file = folder / "aggregator.yaml"
    data = read_yaml(text)
    file.write_text(text)
    try:
        aggregator_settings.load(file, root=root, environ={"POD_NAMESPACE": "sickbay"})
    except ConfigError as error:
        # An example of one section lacks what another one has to give.
        rest = [one for one in error.problems if one.section in data]
        assert not rest, "\n".join(map(str, rest))


def check_values(text: str, folder: Path) -> None:
    """By the chart's schema, over the chart's defaults."""
    values = merged(read_yaml((CHART / "values.yaml").read_text("utf-8")), read_yaml(text))
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    errors = jsonschema.Draft7Validator(schema).iter_errors(values)
    assert not [f"{error.json_path}: {error.message}" for error in errors]


def merged(one: Any, other: Any) -> Any:
    """As Helm merges values."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return other
    return {**one, **{key: merged(one.get(key), value) for key, value in other.items()}}


def check_policy(text: str, folder: Path) -> None:
    file = text_file(folder / "rules.yaml", text)
    read_policy(file)


def check_agent(text: str, folder: Path) -> None:
    monitor = text_file(folder / "kernel-monitor.json", '{"source": "kernel-monitor", "rules": []}')
    file = folder / "agent.toml"
    file.write_text(re.sub(r"/\S+/kernel-monitor\.json", str(monitor), text))
    agent_settings.load(file, {"NODE_NAME": "node-1"})


def check_scenario(text: str, folder: Path) -> None:
    file = text_file(folder / "scenario.toml", text)
    nodes = [f"sim-{number:04}" for number in range(1, 9)]
    events.read_scenario(file, events.Known(nodes, [spec.name for spec in registry.SPECS], 8))


def loader(block: str, keys: set[str]) -> Callable[[str, Path], None] | None:
    """The loader for a block with these first keys, or None for files of other programs."""
    if keys & OTHERS:
        return None
    if block == "toml":
        if "event" in keys:
            return check_scenario
        if "step" in keys:
            return check_profile
        return check_agent
    if keys <= {"aggregator", "agent"}:
        return check_values
    if keys == {"rules"}:
        return check_policy
    assert keys <= set(aggregator_settings.Config.model_fields), keys
    return check_aggregator


def check_profile(text: str, folder: Path) -> None:
    (folder / "own.toml").write_text(text)
    profile.read_profile("own", folder)


@pytest.mark.parametrize("example", CONFIGURATIONS, ids=lambda one: one.at)
def test_each_configuration_is_one_that_the_program_takes(example: Example, tmp_path: Path) -> None:
    parse = tomllib.loads if example.block == "toml" else read_yaml
    data = parse(example.text)
    if isinstance(data, list):  # a part of another program's file
        assert "sickbay.dev/" in example.text
        return
    check = loader(str(example.block), set(data))
    if check is not None:
        check(example.text, tmp_path)
    for name, text in (data.get("data") or {}).items() if data.get("kind") == "ConfigMap" else ():
        assert name == "aggregator.yaml"
        check_aggregator(text, tmp_path)


def test_a_wrong_key_of_each_kind_of_file_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="concurent"):
        check_aggregator("limits: {concurent: 5}\n", tmp_path)
    with pytest.raises(ConfigError, match="actoin"):
        check_policy("rules: [{name: gpu-fatal, actoin: cordon}]\n", tmp_path)
    with pytest.raises(Exception, match="gpu"):
        check_agent("[expect]\ngpu = 8\n", tmp_path)
    with pytest.raises(AssertionError, match=r"\$.aggregator.config.limits: .*concurent"):
        check_values("aggregator: {config: {limits: {concurent: 5}}}\n", tmp_path)
    with pytest.raises(AssertionError):
        loader("yaml", {"limit"})


# -- make ------------------------------------------------------------------------------------------


def test_each_target_of_make_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))
    named = {
        (example.at, target)
        for example in examples()
        for target in re.findall(r"^make ([a-z][a-z-]*[a-z])(?![\w-])", example.text, re.MULTILINE)
    }
    assert len(named) > 30
    assert not {(at, target) for at, target in named if target not in targets}
