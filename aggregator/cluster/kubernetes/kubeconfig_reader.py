"""kubernetes_asyncio's reader of kubeconfigs, without the rest of that library.

`import kubernetes_asyncio` imports 900 modules, one for each type of the API: 0.15 to 0.3 s of a
processor and 60 MiB, in every command that a person types. Its reader uses none of the types.
"""

import importlib
import importlib.util
import sys
from functools import cache
from types import ModuleType
from typing import Any

_LIBRARY = "kubernetes_asyncio"


class KubeconfigSettings:
    """The part of the library's Configuration that its reader sets and `ApiCredentials` uses."""

    def __init__(self) -> None:
        self.host = "http://localhost"
        self.ssl_ca_cert: str | None = None
        self.cert_file: str | None = None
        self.key_file: str | None = None
        self.verify_ssl = True
        self.tls_server_name: str | None = None
        self.proxy: str | None = None
        self.api_key: dict[str, str] = {}

    async def get_api_key_with_prefix(self, name: str) -> str | None:
        """The Authorization header, None where there is no token."""
        return self.api_key.get(name)


@cache
def import_reader() -> Any:
    """The library's module `config`. Raises ModuleNotFoundError where it is not installed.

    Its two parent packages are empty meanwhile. Afterwards the interpreter forgets them and what
    they contain, so that another import of the library gets all of it.
    """
    spec = importlib.util.find_spec(_LIBRARY)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {_LIBRARY!r}", name=_LIBRARY)
    whole = _forget()
    package, client = ModuleType(_LIBRARY), ModuleType(f"{_LIBRARY}.client")
    package.__path__ = list(spec.submodule_search_locations or ())
    # The reader names both in annotations, and in functions for those who use its client.
    vars(client).update(ApiClient=object, Configuration=KubeconfigSettings)
    sys.modules |= {package.__name__: package, client.__name__: client}
    try:
        return importlib.import_module(f"{_LIBRARY}.config")
    finally:
        _forget()
        sys.modules |= whole


def _forget() -> dict[str, ModuleType]:
    """Take the library's modules out of those that are imported."""
    names = [name for name in sys.modules if name.partition(".")[0] == _LIBRARY]
    return {name: sys.modules.pop(name) for name in names}
