"""Leaves Python's own TLS out of the agent's memory: 1.7 MiB of 45 on each node.

gRPC brings a TLS library of its own, and no check of the agent speaks TLS. But asyncio imports
``ssl`` where there is one, and hashlib OpenSSL; both do without. A plugin may need it: then
`restore` gives asyncio what it would have had. docs/benchmarks.md has the figures.
"""

import importlib
import sys

_MODULES = ("ssl", "_hashlib")


def leave_out() -> None:
    """From now on an import of ``ssl`` fails, as in a Python that was built without it.

    Modules that are imported already stay.
    """
    for name in _MODULES:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # the documented mark


def restore() -> None:
    """Undo `leave_out`: TLS can be imported, and asyncio's connections can use it."""
    hidden = [name for name in _MODULES if name in sys.modules and sys.modules[name] is None]
    for name in hidden:
        del sys.modules[name]
    if "ssl" not in hidden or "asyncio" not in sys.modules:
        return
    import ssl
    from asyncio import base_events, selector_events, sslproto

    for module in (base_events, selector_events):
        module.ssl = ssl  # type: ignore[attr-defined]  # None, where its import failed
    importlib.reload(sslproto)
