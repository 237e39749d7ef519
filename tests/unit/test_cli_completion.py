"""Completion: of the parser's own words, and by the real shells."""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from aggregator.cli.command_line import parser_for
from aggregator.cli.completion import complete, script
from tests.support.bytecode import BYTECODE

pytestmark = pytest.mark.slow

PARSER = parser_for("sickbay", {})


def lines(*words: str) -> list[str]:
    def names(asked: Sequence[str]) -> Iterable[str]:
        assert list(asked) == list(words)
        return ["gpu-1", "gpu-2", "cpu-1"]

    return complete(PARSER, words, names)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["sta"], ["status", ":4"]),
        (["qua"], ["quarantines", "quarantine", ":4"]),
        (["alert", ""], ["list", "test", ":4"]),
        (["wait", "gpu-1", "--for", ""], ["quarantined", "drained", "released", ":4"]),
        (["wait", "gpu-1", "--for", "drained", "--tim"], ["--timeout", ":4"]),
        (["node", "gpu"], ["gpu-1", "gpu-2", ":4"]),
        (["release", "--context", "prod", ""], ["gpu-1", "gpu-2", "cpu-1", ":4"]),
        (["release", "gpu-1", ""], [":4"]),
        (["nodes", "-o", "js"], ["json", "jsonpath=", ":4"]),
        (["status", "--kubeconfig", ""], [":0"]),
        (["status", "--context", ""], [":4"]),
        (["completion", ""], ["bash", "zsh", "fish", ":4"]),
        (["status", "--zzz", ""], [":4"]),
        (["he"], ["help", ":4"]),
        (["ver"], ["version", ":4"]),
        (["get", "n"], ["nodes", ":4"]),
        (["get", "nodes", "--sor"], ["--sort-by", ":4"]),
        (["help", "quarantines", ""], [":4"]),
        (["nosuch", "x", "--"], ["--help", "--version", ":4"]),
    ],
)
def test_words_are_completed(words: list[str], found: list[str]) -> None:
    assert lines(*words) == found


def test_every_command_and_each_of_its_options_is_offered() -> None:
    assert set(lines("")) - {":4"} == {*PARSER.commands, "get", "help", "version"}
    for name, parser in PARSER.commands.items():
        offered = set(lines(name, "--"))
        wanted = {
            option
            for action in parser._actions
            for option in action.option_strings
            if option.startswith("--") and action.help != argparse.SUPPRESS
        }
        assert offered - {":4"} == wanted


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with this tree's sickbay, and the program that kubectl asks."""
    programs = {
        "sickbay": "from aggregator.cli.main import main; main()",
        "kubectl-sickbay": "from aggregator.cli.main import main; main()",
        "kubectl_complete-sickbay": (
            "from aggregator.cli.completion import complete_for_kubectl; complete_for_kubectl()"
        ),
    }
    for name, code in programs.items():
        (tmp_path / name).write_text(f"#!{sys.executable}\n{code}\n")
        (tmp_path / name).chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


def run(path: str, *command: str) -> str:
    home = path.partition(":")[0]
    done = subprocess.run(
        command,
        env={"PATH": path, "HOME": home, "TERM": "dumb", **BYTECODE},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def has(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"needs {shell}")


@has("bash")
def test_bash_completes_a_command_and_a_value(path: str) -> None:
    play = (
        script("bash")
        + """
COMP_WORDS=(sickbay qua); COMP_CWORD=1; _sickbay; echo "${COMPREPLY[@]}"
COMP_WORDS=(sickbay wait n --for ""); COMP_CWORD=4; _sickbay; echo "${COMPREPLY[@]}"
complete -p sickbay
"""
    )
    assert run(path, "bash", "-c", play).splitlines() == [
        "quarantines quarantine",
        "quarantined drained released",
        "complete -F _sickbay sickbay",
    ]


@has("zsh")
def test_zsh_completes_a_command(path: str) -> None:
    play = (
        script("zsh")
        + """
compadd() { print -l -- "${(@P)2}" }
words=(sickbay alert ""); CURRENT=3; _sickbay; true
"""
    )
    assert run(path, "zsh", "-f", "-c", play).splitlines() == ["list", "test"]
    folder = Path(path.partition(":")[0])
    (folder / "_sickbay").write_text(script("zsh"))
    autoloaded = (
        f"fpath=({folder})\nautoload _sickbay\ncompadd() {{ print -l -- "
        '"${(@P)2}" }\nwords=(sickbay alert ""); CURRENT=3; _sickbay; true\n'
    )
    assert run(path, "zsh", "-f", "-c", autoloaded).splitlines() == ["list", "test"]


@has("fish")
def test_fish_completes_a_command(path: str) -> None:
    play = f"{script('fish')}\ncomplete --do-complete 'sickbay qua'"
    found = run(path, "fish", "--no-config", "-c", play)
    assert sorted(found.split()) == ["quarantine", "quarantines"]


@has("kubectl")
def test_kubectl_completes_its_plugin(path: str) -> None:
    found = run(path, "kubectl", "__complete", "sickbay", "wait", "n", "--for", "dr")
    assert found.splitlines()[:2] == ["drained", ":4"]
