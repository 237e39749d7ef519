"""The forms of an answer: a table for people, JSON, YAML, names, or a template (jsonpath).

No form sends a character to a terminal that moves its cursor: JSON and YAML escape such
characters, every other form goes through `clean`.
"""

import argparse
import datetime as dt
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from aggregator.cli.errors import UsageError
from aggregator.cli.jsonpath import PathError, Template, read_path, select
from aggregator.cli.screen import Screen
from aggregator.cli.text_table import clean
from aggregator.runtime.text import natural

Answer = dict[str, Any]
Show = Callable[[Answer, Screen], Iterator[str]]

_PLAIN = ("table", "wide", "json", "yaml", "name")
_TEMPLATE = "jsonpath="
#: The place of an item without a value.
_NONE = (3, 0.0, ())


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The value of -o. ``template`` is that of jsonpath, None with any other."""

    name: str
    template: Template | None = None


TABLE = OutputForm("table")


def text_or_json(text: str) -> OutputForm:
    """The form that -o names, of a command that answers with a sentence."""
    if text in {TABLE.name, "json"}:
        return OutputForm(text)
    raise argparse.ArgumentTypeError(f'"{text[:300]}"; expected one of: table, json')


def form(text: str) -> OutputForm:
    """The form that -o names."""
    if text in _PLAIN:
        return OutputForm(text)
    if text.startswith(_TEMPLATE):
        try:
            return OutputForm("jsonpath", Template(text.removeprefix(_TEMPLATE)))
        except PathError as error:
            raise argparse.ArgumentTypeError(f"jsonpath: {error}") from error
    known = ", ".join((*_PLAIN, "jsonpath=TEMPLATE"))
    raise argparse.ArgumentTypeError(f'"{text[:300]}"; expected one of: {known}')


def screen_of_stdout(environ: Mapping[str, str] = os.environ, *, wide: bool = False) -> Screen:
    """The device that stdout is. Lines are cut to a terminal's width; in a pipe they are whole."""
    terminal = sys.stdout.isatty()
    return Screen(
        dt.datetime.now(dt.UTC),
        width=shutil.get_terminal_size().columns if terminal else 0,
        wide=wide,
        colour=terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb",
    )


def print_answer(
    options: argparse.Namespace, answer: Answer, show: Show, *, kind: str = ""
) -> None:
    """Print the answer in the requested form. ``kind``: of the objects that its items
    are, for -o name; without one the answer has no names.
    """
    chosen: OutputForm = options.output
    if chosen.name == "json":
        print(json.dumps(answer, indent=2, ensure_ascii=True))
    elif chosen.name == "yaml":
        import yaml

        print(
            yaml.safe_dump(json.loads(json.dumps(answer)), sort_keys=False, allow_unicode=False),
            end="",
        )
    elif chosen.name == "name":
        for name in _names(answer, kind):
            print(clean(name))
    elif chosen.template is not None:
        sys.stdout.write(chosen.template.expand(answer, clean))
    else:
        for line in show(answer, screen_of_stdout(wide=chosen.name == "wide")):
            print(line)


@contextmanager
def unwritten_exits(code: int) -> Iterator[None]:
    """Exit with ``code`` where the answer can't be written. Of other commands a reader that has
    gone leads to 0 and a full disk to 1, which are verdicts of a test.
    """
    try:
        yield
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            with suppress(OSError):
                print(f"sickbay: the answer can't be written: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(code)


def _names(answer: Answer, kind: str) -> Sequence[str]:
    if not kind:
        raise UsageError("-o name: this answer has no names; expected another form, such as json")
    items = answer.get("items", [answer])
    return list(dict.fromkeys(f"{kind}/{one['node']}" for one in items))


def sort_items(items: list[Answer], path: str) -> list[Answer]:
    """The items of an answer in the order of the values at ``path``. Items without a value come
    last. Raises UsageError.
    """
    if not path:
        return items
    try:
        query = read_path(path)
    except PathError as error:
        raise UsageError(f"--sort-by: {error}; expected a field, such as .node") from error

    def key(item: Answer) -> tuple[int, float, tuple[tuple[int, int, str], ...]]:
        found = next(iter(select(item, query)), None)
        if found is None:
            return _NONE
        if isinstance(found, bool | int | float):
            return (1, float(found), ())
        return (2, 0.0, natural(str(found)))

    keys = [key(item) for item in items]
    if items and all(place == _NONE for place in keys):
        fields = ", ".join(f".{name}" for name in items[0])
        raise UsageError(f'--sort-by: no item has "{path}"; expected one of: {fields}')
    order = sorted(range(len(items)), key=keys.__getitem__)
    return [items[place] for place in order]
