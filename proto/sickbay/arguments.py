"""The parser of each program's command line. Its errors name the most similar command or option."""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, Self


class SuggestingParser(argparse.ArgumentParser):
    """A parser that adds a suggestion to the error about a word that it does not have."""

    def __init__(self, **arguments: Any) -> None:
        arguments.setdefault("allow_abbrev", False)
        super().__init__(**arguments)
        self._given: Sequence[str] = ()

    @property
    def commands(self) -> dict[str, Self]:
        """The parsers of its commands, by name."""
        below: list[Any] = [one for one in self._actions if one.nargs == argparse.PARSER]
        return dict(below[0].choices) if below else {}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's own, which does not pass the words to `error`."""
        self._given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def _print_message(self, message: str, file: Any = None) -> None:
        """As argparse's own, which hides that a help can't be written from Python 3.13 on."""
        if message:
            (file or sys.stderr).write(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """As argparse's own. Raises OSError for a help that can't be written."""
        sys.stdout.flush()
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        """Exit with 2; argparse calls it for each mistake."""
        super().error(self.with_suggestion(message))

    def with_suggestion(self, message: str) -> str:
        """Argparse's message, with a second line where a similar word is known."""
        hint = self._suggestion(message)
        return f"{message}\n  {hint}" if hint else message

    def _suggestion(self, message: str) -> str:
        command = re.search(r"invalid choice: '([^']*)'", message)
        if command is not None and self.commands:
            near = self._commands_like(command[1])
            return f"Did you mean: {' or '.join(near)}" if near else f"See: {self.prog} --help"
        options = re.search(r"unrecognized arguments: (.*)", message)
        if options is not None:
            words = options[1].split()
        elif re.match("(the following|one of the) arguments ", message):
            # A required one is missing: it may be there, misspelt.
            words = [word for word in self._given if not self._has(word.partition("=")[0])]
        else:
            return ""
        wrong = [word.partition("=")[0] for word in words if word.startswith("-")]
        for word in wrong:
            commands = self._commands_with(word)
            if commands:
                return f"{word} is an option of: {', '.join(commands)}"
        known = list(self._options())
        option = next(filter(None, (_nearest(word, known) for word in wrong)), "")
        return f"Did you mean: {option}" if option else ""

    def _commands_like(self, word: str) -> list[str]:
        """The commands with the most similar name, or whose last word is the most similar."""
        direct = self.commands
        found = {name: [parser.prog] for name, parser in direct.items()}
        for parser in direct.values():
            for name, below in parser.commands.items():
                found[f"{parser.prog.removeprefix(self.prog).strip()} {name}"] = [below.prog]
                if name not in direct:
                    found.setdefault(name, []).append(below.prog)
        return found.get(_nearest(word, list(found)), [])

    def _has(self, option: str) -> bool:
        return option in self._option_string_actions

    def _options(self) -> Iterator[str]:
        yield from self._option_string_actions
        for parser in self.commands.values():
            yield from parser._options()  # noqa: SLF001 - of the same class

    def _commands_with(self, option: str) -> list[str]:
        """The commands that have this option, each as it is written."""
        below = self.commands.values()
        found = [one for parser in below for one in parser._commands_with(option)]  # noqa: SLF001
        return [self.prog, *found] if self._has(option) else found


def _nearest(word: str, known: Sequence[str]) -> str:
    import difflib  # only a mistake needs it: each import is memory of every agent

    return next(iter(difflib.get_close_matches(word, known, 1, 0.6)), "")
