"""The fault catalogue: each code's meaning, and the sign that ends it. Facts as data; see
catalogue.yaml.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aggregator.health.model import ClearedBy, Fault
from aggregator.policy.nvlink4 import CODE as NVLINK4
from aggregator.policy.nvlink4 import Nvlink4, parse_nvlink4
from aggregator.policy.nvlink5 import Nvlink5, Row, parse_nvlink5

UNKNOWN = "unknown"

#: The class of an SXid that is not listed, by the driver's own word.
_SWITCH = {
    "fatal": "switch-fatal",
    "non-fatal": "switch-non-fatal",
    "correctable": "switch-non-fatal",
}
_ACRONYMS = frozenset(
    {"gpu", "ecc", "gsp", "rpc", "fifo", "mmu", "pmu", "nvlink", "dbe", "sram", "c2c"}
)


@dataclass(frozen=True, slots=True)
class FaultClass:
    """A class of faults. ``clears`` is the sign that ends its faults."""

    name: str
    means: str
    clears: ClearedBy


@dataclass(frozen=True, slots=True)
class Published:
    """NVIDIA's catalogue entry for an Xid, in its own words. ``on`` are the products that can log
    it; ``unused``: it is marked so, whether or not it lists products; ``now`` and ``then`` are its
    immediate and its investigatory action, empty where it publishes none.
    """

    mnemonic: str
    on: tuple[str, ...]
    now: str
    then: str
    unused: bool = False


@dataclass(frozen=True, slots=True)
class Catalogue:
    """``classes`` by name, ``codes`` ("xid:79") to class names, ``published`` to NVIDIA's words."""

    classes: Mapping[str, FaultClass]
    codes: Mapping[str, str]
    published: Mapping[str, Published]
    nvlink5: Nvlink5
    nvlink4: Nvlink4

    def classify(self, code: str) -> str:
        """The class of a code; "unknown" for one that is not listed, which never acts.

        An SXid's own severity decides, except for those that are always fatal.
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
            return _SWITCH.get(word, UNKNOWN)
        return UNKNOWN

    def class_of(self, fault: Fault, traits: Mapping[str, str]) -> str:
        """The fault's class, where its line decides too. ``traits`` are the node's ("driver")."""
        code = fault.code
        row = self.decode(fault, traits) if code in self.nvlink5.entries else None
        if row is not None:
            return row.fault_class
        by_line = self.nvlink4.class_of(code, fault.details) if code == NVLINK4 else None
        return by_line or self.classify(code)

    def decode(self, fault: Fault, traits: Mapping[str, str]) -> Row | None:
        """The row of NVLink 5's table that the fault's registers match, or None."""
        return self.nvlink5.row(fault.code, fault.details, traits.get("driver", ""))

    def clears(self, fault: Fault, traits: Mapping[str, str]) -> ClearedBy:
        """The sign that ends the fault."""
        return self.clears_class(self.class_of(fault, traits), fault)

    def clears_class(self, its_class: str, fault: Fault) -> ClearedBy:
        """The sign that ends a fault of this class: the catalogue's, or the agent's for a code
        unknown to us.
        """
        found = self.classes.get(its_class)
        return found.clears if found is not None else fault.cleared_by

    def describe(self, code: str) -> str:
        """A code with its name, for people."""
        found = self.published.get(code)
        return f"{code} ({_in_words(found.mnemonic)})" if found is not None else code


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
    nvlink4 = parse_nvlink4(data["nvlink4"])
    published = {f"xid:{number}": _published(text) for number, text in data["xids"].items()}
    return Catalogue(classes, codes, published, parse_nvlink5(data["nvlink5"]), nvlink4)


def _published(text: str) -> Published:
    """``MNEMONIC; a100 h100 unused; RESET_GPU; CONTACT_SUPPORT``; "-" for an empty field."""
    mnemonic, on, now, then = (part.strip() for part in text.split(";"))
    words = on.strip("-").split()
    products = tuple(word for word in words if word != "unused")
    return Published(mnemonic, products, now.strip("-"), then.strip("-"), "unused" in words)


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
    """``79`` or ``"39-41"``, both ends included."""
    first, _, last = str(item).partition("-")
    return range(int(first), int(last or first) + 1)
