"""`sickbay completion SHELL`: completion of commands, options, values and names of nodes.

The shell's function calls `sickbay __complete WORD...`, which answers as programs made with cobra
do: a candidate a line, then `:4`, or `:0` where names of files fit. So kubectl can complete too,
for `kubectl sickbay`: it runs the program kubectl_complete-sickbay on the PATH.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from aggregator.cli.arguments import Parser, node_name
from aggregator.cli.command_words import completed, without_shorthands
from aggregator.cli.errors import CommandFailed, UsageError
from aggregator.cli.options import source_options
from aggregator.cli.source import open_source

#: The command that answers the shell; it is in no help.
COMPLETE = "__complete"
SHELLS = ("bash", "zsh", "fish")
_FILES, _NO_FILES = ":0", ":4"
#: Names of nodes that are offered, and seconds for them.
_MOST, _TIMEOUT = 200, 3.0
#: Values that are words of their own, in addition to `choices`.
_FORMS = ("table", "wide", "json", "yaml", "name", "jsonpath=")


def script(shell: str) -> str:
    """The script that the shell has to read."""
    return (Path(__file__).parent / "shells" / f"completion.{shell}").read_text("utf-8")


def complete(
    parser: Parser, words: Sequence[str], names: Callable[[Sequence[str]], Iterable[str]]
) -> list[str]:
    """The lines for a shell. The last of ``words`` is the one that is written; ``names`` are those
    of nodes, for the words before it.
    """
    *before, part = words or [""]
    here, waiting, placed = _walk(parser, without_shorthands(before))
    if waiting is not None:
        found, files = _values(waiting)
    elif part.startswith("-"):
        found, files = sorted(_options(here)), False
    elif here.commands:
        more = completed(before)
        found, files = more if before[-1:] == ["get"] else [*here.commands, *more], False
    else:
        found, files = _positional(here, placed, lambda: names(words))
    return [*(one for one in found if one.startswith(part)), _FILES if files else _NO_FILES]


def _walk(parser: Parser, words: Iterable[str]) -> tuple[Parser, argparse.Action | None, int]:
    """The parser of the innermost command, the option that waits for its value, and how many
    positional words were there.
    """
    here, waiting, placed = parser, None, 0
    for word in words:
        if waiting is not None:
            waiting = None
        elif word.startswith("-"):
            action = here._option_string_actions.get(word)  # noqa: SLF001 - argparse has no other
            waiting = action if action is not None and action.nargs != 0 else None
        elif word in here.commands:
            here, placed = here.commands[word], 0
        else:
            placed += 1
    return here, waiting, placed


def _options(parser: Parser) -> Iterable[str]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no other
        if action.help != argparse.SUPPRESS:
            yield from (name for name in action.option_strings if name.startswith("--"))


def _values(action: argparse.Action) -> tuple[list[str], bool]:
    """The values of an option, and whether names of files fit."""
    if action.choices is not None:
        return [str(one) for one in action.choices], False
    if action.dest == "output":
        return list(_FORMS), False
    return [], action.type is Path or action.metavar in {"FILE", "DATABASE"}


def _positional(
    parser: Parser, placed: int, names: Callable[[], Iterable[str]]
) -> tuple[list[str], bool]:
    actions = parser._get_positional_actions()  # noqa: SLF001 - argparse has no other
    if placed >= len(actions):
        return [], False
    action = actions[placed]
    if action.choices is not None:
        return [str(one) for one in action.choices], False
    return (list(names()) if action.type is node_name else []), False


def node_names(words: Sequence[str]) -> list[str]:
    """The names that begin with the last word, of the source that the words before it select.
    An error gives no names, and no text: a shell would show it in the middle of its line.
    """
    parser = Parser(parents=[source_options(os.environ)], add_help=False)
    with contextlib.suppress(CommandFailed, UsageError, OSError, ImportError, SystemExit):
        with contextlib.redirect_stderr(None):
            options, _ = parser.parse_known_args(list(words[:-1]))
        with open_source(options, _TIMEOUT) as source:
            found = source.get("nodes", q=words[-1], limit=_MOST)
        return [str(one["node"]) for one in found["items"]]
    return []


def answer(parser: Parser, words: Sequence[str]) -> None:
    """Print the lines for a shell."""
    for line in complete(parser, words, node_names):
        if line.isprintable():
            print(line)


def complete_for_kubectl() -> None:
    """The program kubectl_complete-sickbay: kubectl gives it the words as they are."""
    from aggregator.cli.command_line import parser_for

    answer(parser_for("kubectl-sickbay", os.environ), sys.argv[1:])
