"""The fault catalogue: what a code means and what ends it. Facts as data; see catalogue.yaml."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aggregator.health.model import ClearedBy, Fault

UNKNOWN = "unknown"

_ACRONYMS = frozenset({"gpu", "ecc", "gsp", "rpc", "fifo", "mmu", "pmu", "nvlink", "dbe", "sram"})


@dataclass(frozen=True, slots=True)
class FaultClass:
    """A class of faults. ``clears`` is what ends its faults."""

    name: str
    means: str
    clears: ClearedBy


@dataclass(frozen=True, slots=True)
class Catalogue:
    """``classes`` by name, ``codes`` ("xid:79") to class names, ``names`` to mnemonics."""

    classes: Mapping[str, FaultClass]
    codes: Mapping[str, str]
    names: Mapping[str, str]

    def classify(self, code: str) -> str:
        """The class of a code; "unknown" for one that stands nowhere, which never acts.

        An SXid's own word decides, but for those that are always fatal.
        """
        found = self.codes.get(code)
        if found is not None:
            return found
        kind, _, rest = code.partition(":")
        if kind == "sxid":
            number, _, word = rest.partition(":")
            known = self.codes.get(f"sxid:{number}")
            if known is not None:
                return known
            return {"fatal": "switch-fatal", "non-fatal": "switch-non-fatal"}.get(word, UNKNOWN)
        return UNKNOWN

    def clears(self, fault: Fault) -> ClearedBy:
        """What ends the fault: the catalogue's word, or the agent's for a code unknown to us."""
        found = self.classes.get(self.classify(fault.code))
        return found.clears if found is not None else fault.cleared_by

    def describe(self, code: str) -> str:
        """A code with its name, for people."""
        name = self.names.get(code)
        return f"{code} ({name})" if name else code


def parse_catalogue(data: Mapping[str, Any]) -> Catalogue:
    """Build the catalogue from the parsed YAML. The file is ours: a mistake in it is a bug."""
    classes: dict[str, FaultClass] = {}
    codes: dict[str, str] = {}
    for name, entry in data["classes"].items():
        classes[name] = FaultClass(name, entry["means"], ClearedBy(entry["clears"]))
        for code in _codes(entry):
            if code in codes:
                raise ValueError(f"{code} is in two classes: {codes[code]} and {name}")
            codes[code] = name
    names = {f"xid:{number}": _in_words(name) for number, name in data["names"].items()}
    return Catalogue(classes, codes, names)


def _codes(entry: Mapping[str, Any]) -> Iterator[str]:
    """A class's codes: those in full, then the numbers of its Xids and SXids."""
    yield from entry.get("codes", ())
    for kind in ("xid", "sxid"):
        for item in entry.get(f"{kind}s", ()):
            yield from (f"{kind}:{number}" for number in _numbers(item))


def _in_words(mnemonic: str) -> str:
    """``ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS`` as a person would read it."""
    words = mnemonic.removeprefix("ROBUST_CHANNEL_").lower().split("_")
    return " ".join(word.upper() if word in _ACRONYMS else word for word in words)


def _numbers(item: int | str) -> range:
    """``79`` or ``"39-41"``, both ends in."""
    first, _, last = str(item).partition("-")
    return range(int(first), int(last or first) + 1)
