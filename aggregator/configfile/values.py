"""The kinds of value that a configuration file holds, each with the expected form.

A refusal is a `PydanticCustomError` whose message is "problem; expected ...": `yaml_source` puts
the file, the line and the key before it. A file's content is echoed only where it can't be a
secret.
"""

import difflib
import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
#: Seconds. Ten years: a longer duration is a slip, and a count of milliseconds stays in its range.
LONGEST = 3650 * 86400.0
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_PAGE = re.compile(r"https?://[^/?#@\s]+/?")
_DOCUMENTATION = re.compile(r"https?://[!$%&'()*+,./0-9:;=A-Z\[\]_a-z~-]{1,500}")
_LONGEST_SHOWN = 100
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")


def refuse(what: str, expected: str) -> PydanticCustomError:
    """The error of a validator: the problem, and what is expected instead."""
    return PydanticCustomError(
        "value", "{what}; expected {expected}", {"what": what, "expected": expected}
    )


def show(value: object) -> str:
    """A value as the file has it, or its kind where it is long or may be secret."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and len(value) <= 60 and "://" not in value:
        return f'"{value}"'
    return kind_of(value)


def kind_of(value: object) -> str:
    """The kind of a value, without its content."""
    if isinstance(value, bool):
        return "true" if value else "false"
    names: dict[type, str] = {str: "this text", list: "a list", dict: "a section"}
    names |= {int: "a number", float: "a number", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)


def duration(value: object) -> float:
    """Seconds of "30s", "1.5h" or "7d"."""
    expected = 'a number with its unit (ms, s, m, h, d), such as "30s" or "7d"'
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise refuse(f"{show(value)} is no duration", expected)
    seconds = float(match[1]) * UNITS[match[2]]
    if seconds > LONGEST:
        raise refuse(f"{show(value)} is too long", 'at most ten years, "3650d"')
    return seconds


def percent(value: object) -> float:
    """0 to 100, of "5%"."""
    expected = 'a percentage from 0% to 100%, such as "5%"'
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or float(match[1]) > 100:
        raise refuse(f"{show(value)} is no percentage", expected)
    return float(match[1])


def address(value: object) -> str:
    """``host:port``, ``[v6]:port`` or ``unix:/path``."""
    expected = '"HOST:PORT", "[IPV6]:PORT" or "unix:/PATH"'
    if not isinstance(value, str):
        raise refuse(f"{show(value)} is no address", expected)
    if value.startswith("unix:"):
        if not value.startswith("unix:/"):
            raise refuse(f"{show(value)} has no absolute path", expected)
        if len(value.encode()) > len("unix:") + 107:
            raise refuse(
                f"{show(value)} is too long", "a path of at most 107 bytes, as sockets have"
            )
        return value
    host, colon, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        raise refuse(f"{show(value)} is no address", expected)
    if not (port.isascii() and port.isdigit() and len(port) < 6) or int(port) > 65535:
        raise refuse(f"{show(port)} is no port", "a number from 0 to 65535 (0: the system chooses)")
    if bracketed:
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise refuse(f"{host} is no IPv6 address", expected) from None
    return value


def is_loopback(value: str) -> bool:
    """Whether no other machine can reach the address."""
    if value.startswith("unix:"):
        return True
    host = value.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tcp_address(value: object) -> str:
    """``host:port`` that others can connect to, or no text."""
    if value == "":
        return ""
    expected = '"HOST:PORT" as others reach it'
    try:
        found = address(value)
    except PydanticCustomError as error:  # it would name a socket's path, refused here
        raise refuse((error.context or {})["what"], expected) from None
    if port_of(found) is None:
        raise refuse(f"{show(value)} can't be connected to", expected)
    if found.rpartition(":")[0].strip("[]") in {"0.0.0.0", "::"}:
        raise refuse(f"{show(value)} is every address of a machine and none", expected)
    return found


def port_of(value: str) -> int | None:
    """The port of an address, or None for a socket's path or where the system chooses the port."""
    return None if value.startswith("unix:") else int(value.rpartition(":")[2]) or None


def http_url(value: object) -> str:
    """An http or https URL with a host. Never echoed: a webhook's URL is often its secret."""
    expected = '"https://HOST/..." (or http)'
    if not isinstance(value, str):
        raise refuse(f"{show(value)} is no URL", expected)
    try:
        parts = urlsplit(value)
        port_is_sound = parts.port is None or parts.port > 0
    except ValueError:
        raise refuse("this is no URL", expected) from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_sound:
        raise refuse("this is no URL that can be posted to", expected)
    return value


def _short(value: object) -> str:
    """A value that is not secret, or its kind where it is long."""
    is_short = isinstance(value, str) and len(value) <= _LONGEST_SHOWN
    return f'"{value}"' if is_short else show(value)


def page_url(value: object) -> str:
    """``https://host:port`` (or http) without a path, or empty text. Not a secret."""
    expected = '"https://HOST:PORT", and nothing behind it'
    return _url_like(_PAGE, value, "is no URL of a page", expected)


def documentation_url(value: object) -> str:
    """``https://host/path`` (or http) without query or fragment, or empty text. Not a secret."""
    expected = '"https://HOST/PATH" of the folder that has docs/, without "?" and "#"'
    return _url_like(_DOCUMENTATION, value, "is no address of the documentation", expected)


def _url_like(pattern: re.Pattern[str], value: object, problem: str, expected: str) -> str:
    if value == "":
        return ""
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise refuse(f"{_short(value)} {problem}", expected)
    return http_url(value)


_SQLITE = re.compile(r"sqlite:////[^?]+")
POSTGRESQL = "postgresql+asyncpg"


def database_url(value: object) -> str:
    """The database of history. No URL is echoed, because people write passwords into them."""
    sqlite = '"sqlite:///" and the absolute path of a file'
    expected = f'{sqlite}, or "{POSTGRESQL}://USER@HOST/DATABASE"'
    if isinstance(value, str) and _SQLITE.fullmatch(value) is not None:
        return value
    return _postgresql_url(value, expected)


def shared_database_url(value: object) -> str:
    """A database that several replicas share, or no text."""
    return "" if value == "" else _postgresql_url(value, f'"{POSTGRESQL}://USER@HOST/DATABASE"')


def _postgresql_url(value: object, expected: str) -> str:
    if not isinstance(value, str):
        raise refuse(show(value), expected)
    if not value.startswith("postgres"):  # such as "USER:PASSWORD@HOST"
        raise refuse(kind_of(value) if set(value) & set("@=") else show(value), expected)
    try:
        parts = urlsplit(value)
        host, _, port = parts.hostname, parts.username, parts.port
    except ValueError:
        raise refuse("this is no URL", expected) from None
    if parts.scheme != POSTGRESQL:
        raise refuse(f'"{parts.scheme}" is not known here', f'"{POSTGRESQL}"')
    if parts.password is not None:
        what = "a password in the configuration is shown to every reader of it"
        raise refuse(what, "password_file in this section, and no password here")
    folder = parts.query.removeprefix("host=")
    near = folder.startswith("/") and parts.query != folder and "&" not in folder
    if parts.fragment or (parts.query and not near):
        raise refuse("options in the URL", 'only "?host=/FOLDER/OF/THE/SOCKET"')
    if (
        not parts.username
        or not re.fullmatch(r"/[^/]+", parts.path)
        or bool(host) == near
        or port == 0
    ):
        raise refuse(
            "no user, no database, or not one host",
            f'{expected}, or "{POSTGRESQL}://USER@/DATABASE?host=/FOLDER/OF/THE/SOCKET"',
        )
    return value


def ordinary_path(value: object, info: ValidationInfo) -> Path:
    """An absolute path; a relative one is relative to the configuration file's folder."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise refuse(f"{show(value)} is no path", "the path of a file")
    return Path((info.context or {}).get("folder", "/")) / value


def maybe_path(value: object, info: ValidationInfo) -> Path | None:
    """A path, or None for empty text."""
    return None if value == "" or value is None else ordinary_path(value, info)


def rules_path(value: object, info: ValidationInfo) -> Path:
    """The path of a site's rules. Empty text is refused: a template that filled in no value would
    otherwise silently select the shipped rules.
    """
    if value == "":
        expected = "the path of a file, or no such key for the shipped rules alone"
        raise refuse(f"{show(value)} is no path", expected)
    return ordinary_path(value, info)


_LABEL = r"[A-Za-z0-9./_-]+=[A-Za-z0-9._-]*"
_SELECTOR = re.compile(rf"{_LABEL}(,{_LABEL})*")


def selector(value: object) -> dict[str, str] | None:
    """The labels of "KEY=VALUE,KEY=VALUE", or None for empty text."""
    if value == "":
        return None
    if not isinstance(value, str) or _SELECTOR.fullmatch(value) is None:
        raise refuse(show(value), '"KEY=VALUE", more with commas, or "" for none')
    pairs = (pair.partition("=") for pair in value.split(","))
    return {key: found for key, _, found in pairs}


#: Text that looks like a placeholder, and is no "${SHELL}", "%{curl}" or "{{template}}".
PLACE = re.compile(r"(?<![$%{])\{([A-Za-z_]+)\}(?!\})")
#: The same with a hyphen or a digit, which no placeholder has: "{node-uid}".
_WORD = re.compile(r"(?<![$%{])\{([A-Za-z_][A-Za-z0-9_-]*)\}(?!\})")
#: The same with spaces, as programs of awk have them: a placeholder only where it is near to one.
_SPACED = re.compile(r"(?<![$%{])\{ *([A-Za-z_][A-Za-z0-9_ -]*?) *\}(?!\})")
#: How near; 1 is equal.
_NEAR = 0.8


def wrong_places(text: str, names: Sequence[str]) -> Iterator[str]:
    """The errors of the placeholders in a text, where ``{name}`` of each of the names is
    filled in.
    """
    for place in _SPACED.finditer(text):
        if place[0][1:-1] in names:
            continue
        is_word = _WORD.fullmatch(place[0]) is not None
        requested = re.sub("[ -]", "_", place[1].lower())
        near = difflib.get_close_matches(requested, names, 1, 0.6 if is_word else _NEAR)
        if near or is_word:
            guess = f' (did you mean "{{{near[0]}}}"?)' if near else ""
            yield f'no value is filled in for "{place[0]}"{guess}'
    for name in names:
        if re.search(rf"(?<![$%{{])\{{{name}(?![A-Za-z0-9_:,])[^}}]*\Z", text) is not None:
            yield f'"{{{name}" has no "}}" (did you mean "{{{name}}}"?)'
        if re.match(rf"[^{{]*(?<![A-Za-z0-9_]){name}\}}", text) is not None:
            yield f'"{name}}}" has no "{{" (did you mean "{{{name}}}"?)'


def filled_with(*names: str) -> AfterValidator:
    """Of a command's arguments: ``{name}`` of each of the names is filled in, and no other
    placeholder.
    """
    known = [f"{{{name}}}" for name in names]

    def check(command: tuple[str, ...]) -> tuple[str, ...]:
        for word in command:
            for what in wrong_places(word, names):
                raise refuse(what, f"{', '.join(known[:-1])} or {known[-1]}")
        return command

    return AfterValidator(check)


def without_places(url: str) -> str:
    """A webhook's URL: it is the same for each call, and the values are in the body. Only the
    placeholder is echoed, as the URL may be secret.
    """
    place = re.search(r"\{([A-Za-z_]{1,20})\}", url)
    if place is not None:
        what = f'no value is filled in for "{place[0]}" in a webhook\'s URL'
        raise refuse(what, "one URL for all calls: the body has the node and the other values")
    return url


@dataclass(frozen=True)
class Shaped:
    """Checks that a text matches ``pattern`` as a whole; ``expected`` describes it for people."""

    pattern: str
    expected: str

    def __call__(self, value: object) -> object:
        """The value; pydantic refuses another than a text. Raises PydanticCustomError."""
        if isinstance(value, str) and re.fullmatch(self.pattern, value) is None:
            raise refuse(show(value), self.expected)
        return value


def shaped(pattern: str, expected: str) -> BeforeValidator:
    """A validator of text that matches ``pattern`` as a whole."""
    return BeforeValidator(Shaped(pattern, expected))


Duration = Annotated[float, BeforeValidator(duration)]
Percent = Annotated[float, BeforeValidator(percent)]
#: A percentage above 0.
Share = Annotated[Percent, Field(gt=0)]
Address = Annotated[str, BeforeValidator(address)]
TcpAddress = Annotated[str, BeforeValidator(tcp_address)]
HostName = Annotated[
    str,
    shaped(
        r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?",
        'a host\'s name, "HOST", without scheme and port',
    ),
]
HttpUrl = Annotated[str, BeforeValidator(http_url)]
EmailAddress = Annotated[
    str,
    shaped(
        r"(?=.{1,254}$)[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*",
        'an e-mail address, "NAME@HOST", without a display name',
    ),
]
PageUrl = Annotated[str, BeforeValidator(page_url)]
DocumentationUrl = Annotated[str, BeforeValidator(documentation_url)]
OrdinaryPath = Annotated[Path, BeforeValidator(ordinary_path)]
MaybePath = Annotated[Path | None, BeforeValidator(maybe_path)]
RulesPath = Annotated[Path, BeforeValidator(rules_path)]
ServiceAccount = Annotated[
    str, shaped(r"[a-z0-9.-]+:[a-z0-9.-]+", '"NAMESPACE:NAME", such as "sickbay:sickbay-agent"')
]
Namespace = Annotated[
    str,
    shaped(
        r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
        "a namespace's name: small letters, digits and '-', at most 63",
    ),
]
DatabaseUrl = Annotated[str, BeforeValidator(database_url)]
SharedDatabaseUrl = Annotated[str, BeforeValidator(shared_database_url)]
NamespacePattern = Annotated[
    str, shaped(r"[a-z0-9*?-]+", 'a namespace, or a pattern with "*" and "?" such as "slurm-*"')
]
#: Of a label, taint, annotation or resource of Kubernetes, or empty. No node has another key, so a
#: limit by it would never hold any node.
LabelKey = Annotated[
    str,
    shaped(
        r"(([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?",
        'a key of Kubernetes, such as "topology.kubernetes.io/rack"',
    ),
]
LabelKeys = Annotated[tuple[Annotated[LabelKey, Field(min_length=1)], ...], Field(strict=False)]
NodeLabels = Annotated[
    tuple[
        Annotated[
            str,
            shaped(
                r"[A-Za-z0-9][A-Za-z0-9._/-]{0,316}(=[A-Za-z0-9._-]{0,63})?",
                'a label of nodes, such as "type=virtual-kubelet" or "example.test/agentless"',
            ),
        ],
        ...,
    ],
    Field(strict=False),
]
OwnerKinds = Annotated[
    tuple[
        Annotated[
            str,
            shaped(r"[A-Z][A-Za-z0-9]{0,62}", 'the kind of an owner, such as "AdvancedDaemonSet"'),
        ],
        ...,
    ],
    Field(strict=False),
]
Selector = Annotated[Mapping[str, str] | None, BeforeValidator(selector)]
