"""A kubeconfig looked at before the library reads it, which waits for a pipe and speaks of keys.

What is taken here is what the library takes: files with ':' between them, of each name the first,
the last file's current context.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from aggregator.regular import MOST, regular

#: Each list of a kubeconfig, and where an item of it keeps what it is about.
_LISTS = {"clusters": "cluster", "contexts": "context", "users": "user"}
_WHOLE = "expected clusters, contexts and users, as kubectl config view shows them"


class KubeconfigError(Exception):
    """It can't be used: which file, what is wrong with it, what was expected."""

    def __init__(self, file: str, text: str) -> None:
        super().__init__(f"the kubeconfig {file} can't be used: {text}")


@dataclass(frozen=True, slots=True)
class _Item:
    """A cluster, context or user, and the file that it stands in."""

    file: str
    name: str
    data: Any  # a mapping, once it was picked


def files_in(paths: str) -> list[str]:
    """The files that are there, of several with ':' between them."""
    parts = (os.path.expanduser(part) for part in paths.split(":") if part)  # noqa: PTH111 - no user
    return [part for part in parts if os.path.exists(part)]  # noqa: PTH110 - nor one that may look


def check(paths: str, context: str) -> None:
    """Refuse what can't be used. An empty ``context`` is the current one. Runs no plugin.

    Raises KubeconfigError.
    """
    found: dict[str, dict[str, _Item]] = {kind: {} for kind in _LISTS}
    current: object = None
    for file in files_in(paths):
        data = _read(file)
        current = data.get("current-context", current)
        for kind in _LISTS:
            for item in _items(file, data, kind):
                found[kind].setdefault(item.name, item)
    wanted = context or current
    if not wanted:
        raise KubeconfigError(
            paths, "it has no current context; expected current-context, with a context's name"
        )
    chosen = _pick(paths, found["contexts"], "contexts", wanted)
    if not chosen.data.get("cluster"):
        text = f'its context "{chosen.name}" has no cluster; expected the name of one'
        raise KubeconfigError(chosen.file, text)
    of = f', which its context "{chosen.name}" names'
    cluster = _pick(paths, found["clusters"], "clusters", chosen.data["cluster"], of)
    server = cluster.data.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        text = f'its cluster "{cluster.name}" has no server; expected https://HOST:PORT'
        raise KubeconfigError(cluster.file, text)
    _ordinary(cluster, "certificate-authority", "certificate-authority-data", cluster.file)
    user = chosen.data.get("user")
    if user:
        _check_user(_pick(paths, found["users"], "users", user, of), cluster.file)
    elif server.startswith("https"):  # what speaks plaintext, as kubectl proxy, asks for nobody
        text = f'its context "{chosen.name}" has no user; expected the name of one'
        raise KubeconfigError(chosen.file, text)


def _check_user(user: _Item, beside: str) -> None:
    """``beside``: the file next to which the library looks for certificates, the cluster's."""
    _ordinary(user, "tokenFile", "token", user.file)
    _ordinary(user, "client-certificate", "client-certificate-data", beside)
    _ordinary(user, "client-key", "client-key-data", beside)


def _ordinary(item: _Item, key: str, instead: str, beside: str) -> None:
    """A file that the library will read is one. ``instead`` has its content, and goes first."""
    named = item.data.get(key)
    if instead in item.data or not named:
        return
    if not isinstance(named, str):
        raise KubeconfigError(item.file, f'{key} of "{item.name}" is no text; expected a file')
    file = Path(beside).absolute().parent / named
    try:
        with regular(file, most=MOST).open("rb"):
            pass
    except OSError as error:
        text = f'{key} of "{item.name}": {file} can\'t be read: {error.strerror}'
        raise KubeconfigError(item.file, f"{text}; expected a readable file") from error


def _read(file: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(regular(Path(file), most=MOST).read_text("utf-8"))
    except OSError as error:
        text = f"it can't be read: {error.strerror}; expected a readable file"
        raise KubeconfigError(file, text) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        what = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
        raise KubeconfigError(file, f"{where}{what}; expected YAML") from error
    except (ValueError, RecursionError) as error:  # bytes that are no text; a depth that is no file
        raise KubeconfigError(file, f"it is no YAML; {_WHOLE}") from error
    if data is None:
        raise KubeconfigError(file, f"it is empty; {_WHOLE}")
    if not isinstance(data, dict):
        raise KubeconfigError(file, f"it has no keys; {_WHOLE}")
    return data


def _items(file: str, data: dict[str, Any], kind: str) -> Iterator[_Item]:
    items = data.get(kind) or []
    if not isinstance(items, list):
        raise KubeconfigError(file, f"its {kind} are no list; expected a list, such as - name: x")
    for number, item in enumerate(items, 1):
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str):
            text = f"number {number} of its {kind} has no name; expected name, with text"
            raise KubeconfigError(file, text)
        yield _Item(file, name, item.get(_LISTS[kind]))


def _pick(paths: str, items: dict[str, _Item], kind: str, name: object, of: str = "") -> _Item:
    one = _LISTS[kind]
    if not items:
        raise KubeconfigError(paths, f"it has no {kind}; {_WHOLE}")
    if not isinstance(name, str) or name not in items:
        text = f'it has no {one} "{name}"{of}; expected one of: {", ".join(items)}'
        raise KubeconfigError(paths, text)
    item = items[name]
    if not isinstance(item.data, dict):
        text = f'its {one} "{name}" holds nothing; expected {one}, with keys below it'
        raise KubeconfigError(item.file, text)
    return item
