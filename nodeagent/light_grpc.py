"""Imports gRPC and the contract without modules that no agent runs: 1.3 MiB of 41 on each node.

protobuf imports its implementation in Python although the one in C serves, and gRPC imports
``typing_extensions`` for two names.
"""

import importlib
import sys
import typing
from types import ModuleType
from typing import Any

_PYTHON_MESSAGES = "google.protobuf.internal.python_message"
_TYPES = "typing_extensions"


class _Later(ModuleType):
    """Takes a module's place during the imports; the module itself is imported on its first use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system's own
            raise AttributeError(name)
        self.leave()
        return getattr(importlib.import_module(self.__name__), name)

    def leave(self) -> None:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


def import_grpc() -> None:
    """Import gRPC and the contract, which are then where any other import expects them."""
    from google.protobuf.internal import api_implementation

    types, messages = _Later(_TYPES), _Later(_PYTHON_MESSAGES)
    types.Self, types.override = typing.Self, lambda method: method  # type: ignore[attr-defined]
    later = [types]
    if api_implementation.Type() == "upb":  # the one in C; a machine may have none
        later.append(messages)
    for module in later:
        sys.modules.setdefault(module.__name__, module)
    try:
        for name in ("grpc.aio", "sickbay.v1.sickbay_pb2_grpc"):
            importlib.import_module(name)
    finally:
        for module in later:
            module.leave()
