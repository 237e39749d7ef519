"""Names by which the page may be requested, where only the browser's machine can reach it.

A page on plain loopback has no log-in and no certificate. So any web site that is open in a browser
on that machine could read it by DNS rebinding: its own name resolves to 127.0.0.1 the second time.
The browser then still sends that name as Host. A Host that is an address can't be rebound, and no
site can register ``localhost``.
"""

import ipaddress
from collections.abc import Iterable


class AllowedHosts:
    """``names`` are allowed besides addresses, ``localhost`` and names below it."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(_normal(name) for name in names)

    def allows(self, host: str | None) -> bool:
        """Whether a request with this Host header is answered, or, for None, one without the
        header.

        Every browser sends one.
        """
        if host is None:
            return True
        name = name_of(host)
        if name == "localhost" or name.endswith(".localhost") or name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def name_of(host: str) -> str:
    """The name or address in a Host header, without its port and brackets, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return _normal(host.rpartition(":")[0] if ":" in host else host)


def _normal(name: str) -> str:
    return name.strip().lower().removesuffix(".")
