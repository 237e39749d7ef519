"""The reasons that Slurm itself writes for a node, as conditions that rules name. Pure.

The texts are those of slurmctld (src/slurmctld/node_mgr.c, job_mgr.c, proc_req.c) from Slurm 22.05.
"""

import re
from collections.abc import Mapping

REBOOT_TIMED_OUT = "SlurmRebootTimedOut"
_PATTERNS: Mapping[str, str] = {
    "SlurmKillTaskFailed": r"Kill task failed",
    "SlurmGresCountLow": r"gres/\S+ count (?:reported )?(?:too low|lower than configured)",
    "SlurmResourcesLow": r"Low (?:RealMemory|TmpDisk|CPUs|socket\*core\*thread count)",
    "SlurmNotResponding": r"Not responding",
    "SlurmUnexpectedReboot": r"Node unexpectedly rebooted",
    REBOOT_TIMED_OUT: r"(?:reboot timed out|ResumeTimeout reached)",
    "SlurmPrologError": r"Prolog (?:error|failed)",
    "SlurmEpilogError": r"Epilog error",
    "SlurmBatchFailure": r"batch job complete failure",
}
#: The words of a reboot that Slurm itself carries out (src/slurmctld/power_save.c).
_REBOOTS = frozenset({"reboot issued", "reboot complete"})
_READ = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in _PATTERNS.items()}
#: Numbers in brackets after the words.
_TAIL = re.compile(r"(?: \([^()]*\))?")

#: The types, which no Node of Kubernetes has.
SLURM_TYPES = frozenset(_PATTERNS)


def condition_of(reason: str) -> str:
    """The type of condition that a node's reason is; empty for the words of anybody else."""
    return next((kind for kind, pattern in _READ.items() if pattern.match(reason)), "")


def is_by_slurm(words: str) -> bool:
    """Whether slurmctld appends exactly these words to the reason that a node has already.

    It joins what a node registered too little of: "Low socket*core*thread count, Low CPUs".
    """
    return words in _REBOOTS or all(map(_is_one, words.split(", ")))


def _is_one(words: str) -> bool:
    ends = (read.match(words) for read in _READ.values())
    return any(end is not None and _TAIL.fullmatch(words, end.end()) for end in ends)
