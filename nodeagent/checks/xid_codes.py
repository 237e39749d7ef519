"""The event that ends an Xid, as far as the node can know.

From NVIDIA's Xid catalogue ("Analyzing Xid errors with the Xid catalog", immediate actions). The
*meaning* of a code for the node is the aggregator's policy, and its catalogue outranks this table.
A code that is not here has no name, or requires no action: it expires.
"""

from nodeagent.model import ClearedBy

#: RESTART_BM, RESTART_VM: the whole node starts anew.
_REBOOT = frozenset({79, 151})

#: RESET_GPU; 74 (NVLink before Blackwell), whose workflow ends in a reset; 63, 94, 171 and 172,
#: whose bad memory is taken out of use by the reset; and 173, by which a Grace superchip has lost
#: the link between CPU and GPU.
_GPU_RESET = frozenset(
    {46, 48, 62, 63, 64, 74, 94, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}
    | {171, 172, 173},
)

#: CONTACT_SUPPORT, CHECK_MECHANICALS, UPDATE_SWFW, CHECK_UVM: a person has to look.
_OPERATOR = frozenset(
    {54, 61, 65, 73, 78, 81, 87, 90, 91, *range(111, 119), *range(122, 126), 138, 142, 159}
)

#: NVLink 5: the line's own word decides, see ``cleared_by_nvlink5``.
NVLINK5 = frozenset(range(144, 151))

#: ROBUST_CHANNEL_PREEMPTIVE_REMOVAL: follows another Xid, or a killed process.
FOLLOW_ON = 45

#: GPU_RECOVERY_ACTION_CHANGED (driver R565 and later).
RECOVERY_ACTION = 154

#: The verdicts of Xid 154, in the driver's words and ours.
_VERDICTS = {
    "none": "none",
    "drain p2p": "drain-p2p",
    "drain and reset": "drain-and-reset",
    "gpu reset required": "gpu-reset",
    "node reboot required": "node-reboot",
    "recover imex domain": "recover-imex",
}

#: The same by the number before the words, which is NVML's field 230; it speaks where the words
#: are new ("PF FLR" is 1, a bus reset 6, a system reboot 7).
_VERDICT_NUMBERS = {
    0: "none",
    1: "gpu-reset",
    2: "node-reboot",
    3: "drain-p2p",
    4: "drain-and-reset",
    5: "recover-imex",
    6: "gpu-reset",
    7: "node-reboot",
}

_AFTER_VERDICT = {
    "node-reboot": ClearedBy.REBOOT,
    "none": ClearedBy.EXPIRY,
    "recover-imex": ClearedBy.EXPIRY,
}


def cleared_by(code: int) -> ClearedBy:
    """The event that ends the Xid ``code``, unless its line is more specific."""
    if code in _REBOOT:
        return ClearedBy.REBOOT
    if code in _GPU_RESET:
        return ClearedBy.GPU_RESET
    if code in _OPERATOR:
        return ClearedBy.OPERATOR
    return ClearedBy.EXPIRY


def verdict(number: int, words: str) -> str:
    """Xid 154's new recovery action as one word; ``unknown`` for words of a newer driver."""
    return _VERDICTS.get(words.strip().lower()) or _VERDICT_NUMBERS.get(number, "unknown")


def cleared_by_verdict(word: str) -> ClearedBy:
    """The event that ends an Xid 154 with this verdict."""
    return _AFTER_VERDICT.get(word, ClearedBy.GPU_RESET)


def cleared_by_nvlink5(severity: str) -> ClearedBy:
    """The event that ends a 144-150, by the driver's own Fatal or Nonfatal."""
    return ClearedBy.GPU_RESET if severity == "fatal" else ClearedBy.EXPIRY
