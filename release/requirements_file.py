"""Reads the hashed requirements (requirements/*.txt), as `uv pip compile` writes them.

The standard library alone: the build stage of an image runs it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VIA = re.compile(r"#(?: via)?\s+([A-Za-z0-9._-]+)(?: \(pyproject\.toml\))?$")


class RequirementsError(Exception):
    """The text is not what `make lock` writes; the message has the line."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One locked package. ``hashes`` are SHA-256, in hex; ``parents`` the names that require it."""

    name: str
    version: str
    hashes: frozenset[str]
    parents: frozenset[str]


def canonical(name: str) -> str:
    """A package's name as indexes compare it:
    https://packaging.python.org/en/latest/specifications/name-normalization/
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(lines: Iterable[str]) -> list[Pin]:
    """The pins in their order. Raises RequirementsError: a pin without hashes, or other text."""
    pins: list[Pin] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text == "# via":
            continue
        if found := _PIN.match(text):
            _require_hashes(pins)
            pins.append(Pin(canonical(found[1]), found[2], frozenset(), frozenset()))
        elif pins and (hashed := _HASH.match(text)):
            pins[-1] = _with(pins[-1], hashes={hashed[1]})
        elif pins and (via := _VIA.match(text)):
            pins[-1] = _with(pins[-1], parents={canonical(via[1])})
        elif not text.startswith("#"):
            raise RequirementsError(f"line {number}: {text!r}; expected NAME==VERSION or --hash")
    _require_hashes(pins)
    return pins


def _with(pin: Pin, *, hashes: Iterable[str] = (), parents: Iterable[str] = ()) -> Pin:
    return Pin(pin.name, pin.version, pin.hashes.union(hashes), pin.parents.union(parents))


def _require_hashes(pins: list[Pin]) -> None:
    if pins and not pins[-1].hashes:
        raise RequirementsError(f"{pins[-1].name} has no --hash=sha256: run make lock")
