"""The node health check of NVIDIA's launcher, run from the modules of its own wheel.

``python nvrx_launcher.py FOLDER ENDPOINT``: made once, as a launcher does at its start; then each
line on standard input is one call, and its result a line on standard output. Modules that the check
does not use (attribution, pynvml, httpx) are not installed, and are mocks.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock

_PACKAGE = "nvidia_resiliency_ext"
_REAL = f"{_PACKAGE}.shared_utils"
_NOT_INSTALLED = ("defusedxml", "httpx", "pynvml", "torch", "pydantic", _PACKAGE)


class _Mocks(MetaPathFinder, Loader):
    """Finds modules that are not installed, and those of the package that are not under test."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name.startswith(_REAL) or name.split(".", maxsplit=1)[0] not in _NOT_INSTALLED:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = MagicMock(name=spec.name)
        module.__spec__, module.__path__ = spec, []
        return module

    def exec_module(self, module: ModuleType) -> None:
        """A mock has every name."""


def main(folder: str, endpoint: str) -> None:
    sys.meta_path.insert(0, _Mocks())
    for name in (_PACKAGE, f"{_PACKAGE}.shared_utils"):
        package = ModuleType(name)
        package.__path__ = [f"{folder}/{name.replace('.', '/')}"]
        sys.modules[name] = package
    module = importlib.import_module(f"{_REAL}.health_check")
    check = module.NodeHealthCheck(endpoint=endpoint)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(check(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
