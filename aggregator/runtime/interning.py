"""Shares values that thousands of nodes have in common: each byte of a node is there 10,000
times.
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

#: For the mappings that are empty on nearly every node: an empty dict is 64 bytes. It can't be
#: changed, so its holder replaces it.
EMPTY: Mapping[Any, Any] = MappingProxyType({})


@lru_cache(maxsize=8192)
def intern_text(text: str) -> str:
    """One string for a text that many nodes send, and that a node sends of its GPUs for each check.

    Python's own interning would also keep a place, of 40 to 100 bytes, for each text that only one
    node ever sends: the names of its GPUs, its boot.
    """
    return text
