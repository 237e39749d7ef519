"""Xid 74 (NVLink of A100 and H100): what the registers in the line mean. Pure.

Source: NVIDIA, "Analyzing Xid errors with the Xid catalog", WORKFLOW_NVLINK_ERR; the bits are in
catalogue.yaml. Of the seven registers those that it describes count; a bit that it does not
describe is not guessed at.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CODE = "xid:74"
#: The detail of the fault that has the registers: of all its lines, each bit that was ever set.
REGISTERS = "registers"
#: The class for bits that are to be ignored by NVIDIA's workflow, and for those that point at a
#: cable or connector.
CLASSES = {"ignore": "nvlink-ignore", "cable": "nvlink-cable"}

_REGISTER = re.compile(r"0x[0-9a-fA-F]{1,8}")
_MOST = 12


@dataclass(frozen=True, slots=True)
class Bits:
    """Some bits of one register (from 1): what to do about them, and their meaning for people."""

    register: int
    mask: int
    action: str
    means: str


@dataclass(frozen=True, slots=True)
class Nvlink4:
    """The bits of all registers."""

    table: tuple[Bits, ...]

    def decode(self, code: str, details: Mapping[str, str]) -> tuple[Bits, ...]:
        """The entries of which the line has a bit; empty without registers, or where it has a bit
        that no entry has.
        """
        text = details.get(REGISTERS, "") if code == CODE else ""
        words = text.split()
        if not words or len(words) > _MOST or not all(map(_REGISTER.fullmatch, words)):
            return ()
        left = {number: int(word, 16) for number, word in enumerate(words, 1)}
        found = tuple(bits for bits in self.table if left.get(bits.register, 0) & bits.mask)
        for bits in found:
            left[bits.register] &= ~bits.mask
        return () if any(left.values()) else found

    def class_of(self, code: str, details: Mapping[str, str]) -> str | None:
        """The class that the registers give the fault; None: its code's own.

        A bit to be ignored counts only where no other is set.
        """
        actions = {bits.action for bits in self.decode(code, details)}
        if actions == {"ignore"}:
            return CLASSES["ignore"]
        return CLASSES["cable"] if "cable" in actions else None


def parse_nvlink4(entries: list[dict[str, Any]]) -> Nvlink4:
    """Build the table from the parsed YAML. The file is ours: a mistake in it is a bug."""
    table = []
    for entry in entries:
        action = entry["action"]
        if action not in (*CLASSES, "other"):
            raise ValueError(f"no action {action!r}")
        mask = sum(1 << bit for bit in entry["bits"])
        table.append(Bits(entry["register"], mask, action, entry["means"]))
    return Nvlink4(tuple(table))
