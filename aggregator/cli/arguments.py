"""The parser of the command line: commands in groups, with examples."""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aggregator.runtime.command_options import add_value
from aggregator.runtime.node_name import EXPECTED, expect_one_node, is_node_name
from sickbay.arguments import SuggestingParser

Command = Callable[[argparse.Namespace], None]

#: The file name of the plugin for kubectl; see `program`.
PLUGIN = "kubectl-sickbay"


def program(executable: str) -> str:
    """The command as the person called it: kubectl runs PLUGIN for `kubectl sickbay`."""
    return "kubectl sickbay" if Path(executable).name == PLUGIN else "sickbay"


class Parser(SuggestingParser):
    """The parser of `sickbay`, and of each of its commands."""

    def __init__(self, **arguments: Any) -> None:
        arguments.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**arguments)

    value = add_value

    def flag(self, names: str, text: str) -> None:
        """An option without a value."""
        self.add_argument(*names.split(), action="store_true", help=text)


@dataclass
class Subcommands:
    """The commands of a parser, in groups. Its help lists them."""

    parser: Parser
    groups: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    _subparsers: Any = None

    def __post_init__(self) -> None:
        self._subparsers = self.parser.add_subparsers(
            required=True, metavar="COMMAND", help=argparse.SUPPRESS, parser_class=Parser
        )

    def add(
        self,
        group: str,
        name: str,
        text: str,
        command: Command | None = None,
        *,
        parents: Sequence[argparse.ArgumentParser] = (),
        examples: Sequence[str] = (),
        more: str = "",
        of_node: bool = False,
    ) -> Parser:
        """A command, which ``command`` carries out; None: it has commands of its own.

        ``more`` is printed below ``text`` in its own help, and ``examples`` last. ``of_node``: its
        first argument is a node.
        """
        made: Parser = self._subparsers.add_parser(
            name,
            help=text,
            description="\n\n".join(filter(None, (text[0].upper() + text[1:] + ".", more))),
            epilog=_examples(self.parser.prog, examples),
            parents=list(parents),
        )
        if command is not None:
            made.set_defaults(command=command)
        if of_node:
            made.add_argument("name", type=node_name, metavar="NODE", help="its name")
        self.groups.setdefault(group, []).append((name, text))
        return made

    def describe(self, purpose: str, end: str) -> None:
        """Write the help of the parser itself, from the groups."""
        lines = [purpose]
        width = max(len(name) for group in self.groups.values() for name, _ in group)
        for title, group in self.groups.items():
            lines += ["", f"{title}:"]
            lines += [f"  {name:<{width}}  {text}" for name, text in group]
        self.parser.description = "\n".join(lines)
        # Set last: argparse would put it before the names of the commands' own parsers.
        version = " [--version]" if "--version" in self.parser._option_string_actions else ""  # noqa: SLF001
        self.parser.usage = f"%(prog)s [-h]{version} COMMAND ..."
        self.parser.epilog = end


def _examples(prog: str, examples: Sequence[str]) -> str | None:
    if not examples:
        return None
    return "\n".join(["examples:", *(f"  {prog} {example}".rstrip() for example in examples)])


def node_name(text: str) -> str:
    """A node's name. An empty one (a shell's variable that is not set) would mean all nodes, and
    without Kubernetes no other check refuses an invalid name.
    """
    if not is_node_name(text):
        raise argparse.ArgumentTypeError(f"{text[:300]!r}: {EXPECTED}")
    return text


def one_node_name(text: str) -> str:
    """A node's name for a program of the site, to which some names mean every node."""
    try:
        expect_one_node(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def test_profile(text: str) -> str:
    what = "expected the name of a test profile, such as standard"
    return _matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text, what)


def namespace(text: str) -> str:
    what = "expected a namespace's name: small letters, digits and '-', at most 63"
    return _matching(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text, what)


def _matching(pattern: str, text: str, what: str) -> str:
    if re.fullmatch(pattern, text) is None:
        raise argparse.ArgumentTypeError(f"{text[:300]!r}: {what}")
    return text


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'"{text}": expected a whole number from 1 on')
    return int(text)
