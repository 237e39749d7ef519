"""The names that a node can have. Other text may be a pattern in a site's program."""

import re

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
#: Slurm's words for every node and for nodes without a line of their own, in any case of letters:
#: https://slurm.schedmd.com/slurm.conf.html, https://slurm.schedmd.com/scontrol.html
_ALL_NODES = frozenset({"all", "default"})

EXPECTED = "expected a node's name: letters, digits, '-', '_' and '.', at most 253"


def is_node_name(text: str) -> bool:
    """Whether a node can have this name: no range, list, option or control character."""
    return _NAME.fullmatch(text) is not None


def names_one_node(text: str) -> bool:
    """Whether a program of the site takes it as the name of one node."""
    return is_node_name(text) and text.lower() not in _ALL_NODES


def expect_one_node(text: str) -> None:
    """Raise ValueError with a text for people where `names_one_node` is False."""
    if names_one_node(text):
        return
    if is_node_name(text):
        raise ValueError(f"{text!r} means every node to Slurm; expected another node's name")
    raise ValueError(f"{text[:300]!r}: {EXPECTED}")
