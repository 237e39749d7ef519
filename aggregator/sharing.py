"""What thousands of nodes have in common, kept once: each byte of a node is there 10,000 times."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

#: For the mappings in which nearly every node has nothing: an empty dict is 64 bytes. It can't be
#: changed, so whoever holds it replaces it.
NOTHING: Mapping[Any, Any] = MappingProxyType({})


@lru_cache(maxsize=8192)
def one_text(text: str) -> str:
    """One string for what many nodes say, and a node of its GPUs for each check.

    Python's own interning would also keep a place, of 40 to 100 bytes, for each that one node alone
    ever says: the names of its GPUs, its boot.
    """
    return text
