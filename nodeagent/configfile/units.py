"""Quantities as people write them in the configuration: "30s", "1h30m", "95%", "1GiB", "host:port".

Each function gives the value or raises a ValueError that states what is wrong (not what was
expected: the caller knows that better).
"""

import ipaddress
import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_BYTES = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGTP", start=1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGTP", start=1)},
}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*(\S*)")
_UNIX_PATH_LIMIT = 107  # sockaddr_un.sun_path is 108 bytes with its closing zero (unix(7))


def counted(count: int, one: str, more: str = "") -> str:
    """A number of things for people: "1 GPU is", "2 GPUs are". ``more`` is for several of them,
    where that is not ``one`` with an "s".
    """
    return f"{count} {one if count == 1 else more or one + 's'}"


def duration(text: str) -> float:
    """Seconds, of texts such as "90s", "1h30m", "250ms"."""
    if not _DURATION.fullmatch(text):
        raise ValueError(_trouble(text, "duration", list(_SECONDS)))
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))


def percent(text: str) -> float:
    """Per cent, 0 to 100: 95.0 of "95%"."""
    number = _NUMBER.fullmatch(text)
    if number is None or number[2] != "%":
        raise ValueError(_trouble(text, "percentage", ["%"]))
    value = float(number[1])
    if value > 100:
        raise ValueError(f'"{text}" is more than 100%')
    return value


def size(text: str) -> int:
    """Bytes, of texts such as "1GiB", "500MB", "4096B"."""
    number = _NUMBER.fullmatch(text)
    if number is None or number[2] not in _BYTES:
        raise ValueError(_trouble(text, "size", list(_BYTES)))
    return int(float(number[1]) * _BYTES[number[2]])


def host_port(text: str) -> tuple[str, int]:
    """Host and port, of "host:port" or "[v6]:port"; the host may be empty (":9100")."""
    host, colon, port = text.rpartition(":")
    if not colon or not port:
        raise ValueError(f'"{text}" has no port')
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f'"{port}" is no port')
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f'"{text}" has more than one colon')
    if re.search(r"[\s/@\[\]]", host):
        raise ValueError(f'"{host}" is no host')
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether traffic to ``host`` stays on this machine. Of names only "localhost" counts."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def socket_path(text: str) -> str:
    """An absolute path that fits into a unix socket's address."""
    if not text.startswith("/"):
        raise ValueError(f'"{text}" is not absolute')
    if len(text.encode()) > _UNIX_PATH_LIMIT:
        raise ValueError(f"is {len(text.encode())} bytes long, and {_UNIX_PATH_LIMIT} fit")
    return text


def _trouble(text: str, noun: str, units: list[str]) -> str:
    number = _NUMBER.fullmatch(text)
    if number is None:
        return f'"{text}" is no {noun}'
    unit = number[2]
    if not unit:
        return f'"{text}" has no unit'
    meant = [known for known in units if known.lower() == unit.lower()]
    hint = f' (did you mean "{meant[0]}"?)' if meant else ""
    return f'"{text}" has the unknown unit "{unit}"{hint}'
