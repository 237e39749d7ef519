"""Command lines that users of kubectl write, as this program's own commands. Pure."""

from collections.abc import Sequence

#: The objects that `get` lists, by their words; one object with a name has a command of its own.
_LISTS = {
    "node": "nodes",
    "nodes": "nodes",
    "no": "nodes",
    "quarantine": "quarantines",
    "quarantines": "quarantines",
    "quarantines.sickbay.dev": "quarantines",
    "incident": "incidents",
    "incidents": "incidents",
    "lemons": "lemons",
    "job": "jobs",
    "jobs": "jobs",
    "replicas": "replicas",
}
_HELP = ("-h", "--help")
#: Options with a value that may come before the command.
_BEFORE = frozenset(
    {
        *("-o", "--output", "-n", "--namespace", "--kubeconfig", "--context", "--url"),
        *("--ca-file", "--token-file", "--local"),
    }
)


def completed(before: Sequence[str]) -> list[str]:
    """The words that a shell may offer in addition to the parser's own, after the words before
    it.
    """
    match _split(before)[1]:
        case []:
            return ["get", "help"]
        case ["get"]:
            return sorted({kind for kind in _LISTS if kind == _LISTS[kind]})
    return []


def without_shorthands(before: Sequence[str]) -> list[str]:
    """The words before the one to complete, with `get KIND` and `help` as the parser has them."""
    leading, rest = _split(before)
    return [*leading, *_without_get(rest[1:] if rest[:1] == ["help"] else rest)]


def refusal(words: Sequence[str]) -> str:
    """What is wrong with a `get` that names no list; empty: nothing is."""
    match _split(words)[1]:
        case ["get"]:
            given = "no list is named"
        case ["get", kind, *_] if kind not in _LISTS and kind not in _HELP:
            given = f"there is no list {kind[:80]}"
        case _:
            return ""
    return f"get: {given}; expected one of: {', '.join(sorted(set(_LISTS.values())))}"


def own_words(words: Sequence[str]) -> list[str]:
    """The words as the parser knows them: without any word help, `help` as an option, `get KIND`
    as the list's command, and leading options behind the command.
    """
    leading, rest = _split(words)
    match rest:
        case []:
            return leading or ["--help"]
        case ["help", "get" | "help"] | ["get", "-h" | "--help"]:
            return ["--help"]
        case ["help", *about]:
            return [*_without_get(about), "--help"]
    return [*_without_get(rest), *leading]


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options before the command with their values, and the words from the command on."""
    place = 0
    while place < len(words):
        name, equals, _ = words[place].partition("=")
        if name in _BEFORE:
            place += 1 if equals else 2
        elif words[place].startswith("-o") and not words[place].startswith("--"):
            place += 1  # -ojson
        else:
            break
    return list(words[:place]), list(words[place:])


def _without_get(words: Sequence[str]) -> list[str]:
    match words:
        case ["get", kind, name, *rest] if _LISTS.get(kind) == "nodes" and name[:1] != "-":
            return ["node", name, *rest]
        case ["get", kind, *rest] if kind in _LISTS:
            return [_LISTS[kind], *rest]
    return list(words)
