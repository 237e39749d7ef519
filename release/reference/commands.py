"""docs/reference/commands.md: every command of the three programs, with its options."""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from aggregator.cli.command_line import parser_for
from aggregator.daemon_cli.main import parser as aggregator_parser
from nodeagent.terminal.arguments import parser as agent_parser
from release.reference.tables import table

_HEAD = """# Commands and options
Made from the programs by `make docs-reference`. [cli.md](../cli.md),
[aggregator.md](../aggregator.md), [policy.md](../policy.md) and [agent.md](../agent.md) explain
them with examples. `COMMAND --help` shows the same.
"""
#: An option of so many commands of a program is described once.
_COMMON = 5


def page() -> str:
    """The page's Markdown."""
    lines = [_HEAD]
    for program in (parser_for("sickbay", {}), aggregator_parser(), agent_parser()):
        commands = [(*one, list(_options(one[1]))) for one in _commands(program, program.prog)]
        counts = Counter(row for *_, options in commands for row in options)
        common = [row for row, n in counts.items() if n >= _COMMON and row[0].startswith("`-")]
        lines.append(f"## {program.prog}\n")
        if common:
            lines += ["Options of several commands:", "", *_table(common), ""]
        for name, _, purpose, options in commands:
            lines += [f"### {name}", purpose, ""]
            shared = [row[0].split("`")[1].split()[0] for row in options if row in common]
            own = [row for row in options if row not in common]
            if shared:
                lines += ["Also " + ", ".join(f"`{option}`" for option in shared) + ".", ""]
            if own:
                lines += [*_table(own), ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    return table(("option", "default", "meaning"), rows)


def _commands(
    parser: argparse.ArgumentParser, name: str, purpose: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    """Each command that has none below it, by its whole name."""
    below = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not below:
        yield name, parser, purpose or _sentence(parser.description or "")
    for action in below:
        purposes = {one.dest: one.help or "" for one in action._choices_actions}
        for word, command in action.choices.items():
            text = purposes.get(word) or command.description or ""
            yield from _commands(command, f"{name} {word}", _sentence(text))


def _sentence(text: str) -> str:
    first = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    return first[:1].upper() + first[1:] + ("" if first.endswith((".", ":")) or not first else ".")


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        yield _written(action), _default(action), _help(parser, action)


def _written(action: argparse.Action) -> str:
    value = action.metavar or (
        "|".join(map(str, action.choices)) if action.choices else action.dest.upper()
    )
    shown = " ".join(value) if isinstance(value, tuple) else str(value)
    if not action.option_strings:
        return f"`{shown}`"
    takes = "" if action.nargs == 0 else f" {shown}"
    return ", ".join(f"`{option}{takes}`" for option in action.option_strings)


def _default(action: argparse.Action) -> str:
    default = action.default
    shown = isinstance(default, str | int | float | Path) and action.nargs != 0
    return f"`{default}`" if shown and str(default) not in ("", argparse.SUPPRESS) else ""


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    return f"{text} (needed)".strip() if action.required and action.option_strings else text
