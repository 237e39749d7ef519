"""Checks a kubeconfig before it is read, so that each error names the file and the key.

Of several files, with ':' between them, the first one counts for each name, and the last one's
current context.
"""

import base64
import os
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from aggregator.configfile.shallow_yaml import ShallowLoader
from aggregator.configfile.yaml_error import where_and_what
from sickbay.regular_file import MOST, MOST_CONFIG, require_regular_file

#: Each list of a kubeconfig, and the key that holds the content of its items.
_LISTS = {"clusters": "cluster", "contexts": "context", "users": "user"}
_WHOLE = "expected clusters, contexts and users, as kubectl config view shows them"
#: Bytes: a person's file has hundreds of clusters, each with its certificates.
_MOST = 4 * MOST_CONFIG
_PEM = "PEM, with -----BEGIN and -----END"


class KubeconfigError(Exception):
    """A kubeconfig can't be used: the file, its error, and the expected content."""

    def __init__(self, file: str, text: str) -> None:
        super().__init__(f"the kubeconfig {file} can't be used: {text}")


@dataclass(frozen=True, slots=True)
class KubeconfigItem:
    """A cluster, context or user, and the file that has it."""

    file: str
    name: str
    data: Any  # a mapping, once it was picked


def files_in(paths: str) -> list[str]:
    """The files that are there, of several with ':' between them."""
    parts = (os.path.expanduser(part) for part in paths.split(":") if part)  # noqa: PTH111 - no user
    return [part for part in parts if os.path.exists(part)]  # noqa: PTH110 - nor one that may look


@dataclass(frozen=True, slots=True)
class Chosen:
    """The cluster and the user of a context, and the files for TLS, or None where there is none."""

    cluster: KubeconfigItem
    user: KubeconfigItem | None
    authority: "NamedFile | None" = None
    certificate: "NamedFile | None" = None
    key: "NamedFile | None" = None


def choose(paths: str, context: str) -> Chosen:
    """A context's cluster and user, both sound; an empty ``context`` is the current one. Runs no
    plugin. Raises KubeconfigError.
    """
    found: dict[str, dict[str, KubeconfigItem]] = {kind: {} for kind in _LISTS}
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
    with_tls = _check_server(cluster)  # else the library checks no certificate
    _check_proxy(cluster)
    _must_hold(cluster, "proxy-url", "tls-server-name", "insecure-skip-tls-verify")
    instead = "certificate-authority-data"
    authority = _ordinary(cluster, "certificate-authority", instead, cluster.file, read=with_tls)
    if with_tls and authority is not None:
        _check_authority(authority)
    named = chosen.data.get("user")
    if named:
        user = _pick(paths, found["users"], "users", named, of)
        pair = _check_user(user, cluster.file, with_tls=with_tls)
        return Chosen(cluster, user, authority, *pair) if with_tls else Chosen(cluster, user)
    if with_tls:  # a plaintext server, as kubectl proxy, needs no user
        text = f'its context "{chosen.name}" has no user; expected the name of one'
        raise KubeconfigError(chosen.file, text)
    return Chosen(cluster, None)


def _check_server(cluster: KubeconfigItem) -> bool:
    """Whether it speaks TLS. An address that is refused is not shown: it may hold a password."""
    server = cluster.data.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        text = f'its cluster "{cluster.name}" has no server; expected https://HOST:PORT'
        raise KubeconfigError(cluster.file, text)
    if not is_address(server):
        text = f'its cluster "{cluster.name}" has a server that is no address'
        raise KubeconfigError(cluster.file, f"{text}; expected https://HOST:PORT")
    if "@" in urlsplit(server).netloc:
        text = f'its cluster "{cluster.name}" has a user in its server; expected https://HOST:PORT'
        raise KubeconfigError(cluster.file, f"{text}, and its name and password below users")
    return server.startswith("https://")


def _check_proxy(cluster: KubeconfigItem) -> None:
    proxy = cluster.data.get("proxy-url")
    if proxy and not (isinstance(proxy, str) and is_address(proxy)):
        text = f'its cluster "{cluster.name}" has a proxy-url that can\'t be used'
        raise KubeconfigError(cluster.file, f"{text}; expected http://HOST:PORT (or https)")


def is_address(url: str) -> bool:
    """Whether it is an http or https URL with a host, and a port that can be one if any."""
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class NamedFile:
    """The value under one of an item's keys: the content itself, or the name of its file."""

    item: KubeconfigItem
    key: str
    file: Path | None

    def wrong(self, text: str) -> KubeconfigError:
        where = f'{self.key} of "{self.item.name}"' + (f": {self.file}" if self.file else "")
        return KubeconfigError(self.item.file, f"{where} {text}")

    def holds_no(self, what: str) -> KubeconfigError:
        in_base64 = "" if self.file else ", all of it in base64"
        return self.wrong(f"holds no {what}; expected {_PEM}{in_base64}")

    def at(self, ends: ExitStack) -> str:
        """A file with its content, until the end of ``ends``: OpenSSL reads nothing else."""
        if self.file is not None:
            return str(self.file)
        try:
            content = base64.standard_b64decode(self.item.data[self.key])
        except (TypeError, ValueError) as error:
            raise self.wrong("is no base64; expected PEM, in base64") from error
        try:
            return file_in_memory(content, ends)
        except OSError as error:
            text = f"is to be put into a file for OpenSSL, and can't: {error}"
            raise self.wrong(f"{text}; expected a free file descriptor") from error


def file_in_memory(content: bytes, ends: ExitStack) -> str:
    """A file with the content, until the end of ``ends`` or of this process. Raises OSError.

    A process that is killed would leave a key on the disk.
    """
    descriptor = os.memfd_create("sickbay")
    ends.callback(os.close, descriptor)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return f"/proc/self/fd/{descriptor}"


def _check_user(
    user: KubeconfigItem, config_file: str, *, with_tls: bool
) -> "tuple[NamedFile | None, NamedFile | None]":
    """Its certificate and key. ``config_file``: the file next to which these are looked for, the
    cluster's.
    """
    _must_hold(user, "exec", "auth-provider")
    if "auth-provider" in user.data:
        text = f'auth-provider of "{user.name}" is not supported; expected exec, with a plugin'
        raise KubeconfigError(user.file, text)
    by_another = "exec" in user.data
    if not by_another:
        _must_hold(user, "token")
    _ordinary(user, "tokenFile", "token", user.file, read=not by_another)
    of_certificate = ("client-certificate", "client-certificate-data", config_file)
    certificate = _ordinary(user, *of_certificate, read=with_tls)
    key = _ordinary(user, "client-key", "client-key-data", config_file, read=with_tls)
    if with_tls and certificate is not None:
        _check_pair(certificate, key)
    return certificate, key


def _check_authority(authority: NamedFile) -> None:
    with ExitStack() as ends:
        try:
            _tls().load_verify_locations(authority.at(ends))
        except ssl.SSLError as error:
            raise authority.holds_no("certificate") from error


def _check_pair(certificate: NamedFile, key: NamedFile | None) -> None:
    """OpenSSL reports that a pair can't be used, and not which of the two is wrong."""
    prompted: list[bool] = []

    def passphrase() -> str:
        prompted.append(True)
        return ""  # else OpenSSL would prompt at the terminal

    with ExitStack() as ends:
        first = certificate.at(ends)
        second = key.at(ends) if key is not None else None
        try:
            _tls().load_cert_chain(first, second, passphrase)
        except OSError as error:  # as ssl.SSLError is, too
            if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
                text = "is not the key of its certificate; expected the two that belong together"
                raise (key or certificate).wrong(text) from error
            if prompted:
                text = "is encrypted; expected a private key without a passphrase"
                raise (key or certificate).wrong(text) from error
            try:
                _tls().load_verify_locations(first)
            except ssl.SSLError:
                raise certificate.holds_no("certificate") from error
            if key is None:
                text = "holds no private key for the certificate; expected client-key with one"
                raise certificate.wrong(text) from error
            raise key.holds_no("private key") from error


def _tls() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _must_hold(item: KubeconfigItem, *keys: str) -> None:
    """The library's own error for a key without a value quotes everything next to it."""
    for key in keys:
        if key in item.data and item.data[key] is None:
            text = f'{key} of "{item.name}" is empty; expected a value, or no such key'
            raise KubeconfigError(item.file, text)


def _ordinary(
    item: KubeconfigItem, key: str, instead: str, config_file: str, *, read: bool
) -> NamedFile | None:
    """Check that the library will read a file. ``instead`` has its content, and goes first.

    Returns None where there is neither. ``read``: whether the library reads it, be it empty or not.
    """
    if item.data.get(instead, "") != "":
        return NamedFile(item, instead, None)
    named = item.data.get(key)
    if not named and not (read and key in item.data):
        return None
    if named in ("", None):
        text = f'{key} of "{item.name}" is empty; expected a file, or no such key'
        raise KubeconfigError(item.file, text)
    if not isinstance(named, str):
        raise KubeconfigError(item.file, f'{key} of "{item.name}" is no text; expected a file')
    file = Path(config_file).absolute().parent / named
    try:
        with require_regular_file(file, most=MOST).open("rb"):
            pass
    except OSError as error:
        text = f'{key} of "{item.name}": {file} can\'t be read: {error.strerror}'
        raise KubeconfigError(item.file, f"{text}; expected a readable file") from error
    return NamedFile(item, key, file)


def _read(file: str) -> dict[str, Any]:
    try:
        text = require_regular_file(Path(file), most=_MOST).read_text("utf-8")
        data = yaml.load(text, Loader=ShallowLoader)  # noqa: S506  a safe loader
    except OSError as error:
        text = f"it can't be read: {error.strerror}; expected a readable file"
        raise KubeconfigError(file, text) from error
    except yaml.YAMLError as error:
        line, what = where_and_what(error)
        where = f"line {line}: " if line else ""
        raise KubeconfigError(file, f"{where}{what}; expected YAML") from error
    # Bytes that are no text; a value that its tag does not fit; a depth that is no file.
    except (ValueError, LookupError, AttributeError, RecursionError) as error:
        raise KubeconfigError(file, f"it is no YAML; {_WHOLE}") from error
    if data is None:
        raise KubeconfigError(file, f"it is empty; {_WHOLE}")
    if not isinstance(data, dict):
        raise KubeconfigError(file, f"it has no keys; {_WHOLE}")
    return data


def _items(file: str, data: dict[str, Any], kind: str) -> Iterator[KubeconfigItem]:
    items = data.get(kind) or []
    if not isinstance(items, list):
        raise KubeconfigError(file, f"its {kind} are no list; expected a list, such as - name: x")
    for number, item in enumerate(items, 1):
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str):
            text = f"number {number} of its {kind} has no name; expected name, with text"
            raise KubeconfigError(file, text)
        yield KubeconfigItem(file, name, item.get(_LISTS[kind]))


def _pick(
    paths: str, items: dict[str, KubeconfigItem], kind: str, name: object, of: str = ""
) -> KubeconfigItem:
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
