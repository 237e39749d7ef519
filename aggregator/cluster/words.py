"""The words of each kind of cluster, for people: one table, words.toml, read at import.

Every surface and every message takes them from the cluster that it is about.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterWords:
    """Sentences, some with fields in braces.

    ``one`` and ``many`` name the work that a drain waits for. ``marked`` begins the event of a
    quarantine that is in force, ``in_force`` is its status then, and ``moved`` the event of work
    that has left. ``cordoned`` is the name of the phase Cordoned; ``phases`` describe the
    phases of a quarantine, ``modes`` the modes cordon and drain. ``holds`` and ``blocked`` are
    next steps that differ from those on Kubernetes. ``record`` has the record of
    admission, and ``forget_note`` removes unreadable notes (``keys``).
    """

    kind: str
    one: str
    many: str
    marked: str
    in_force: str
    moved: str
    cordoned: str
    phases: Mapping[str, str]
    modes: Mapping[str, str]
    stays: str
    mode_keeps: str
    draining: str
    empty: str
    empty_again: str
    gone: str
    left_alone: str
    late: str
    late_forced: str
    late_kept: str
    returned: str
    not_moved: str
    blockers_title: str
    blocked: str
    drain_question: str
    stopped: str
    taken_out: str
    recordoned: str
    kept_away: str
    before_us: str
    release: str
    nodes: str
    record: str
    forget_note: str
    tool: str
    read_only: str
    holds: Mapping[str, str] = field(default_factory=dict)

    def phase(self, name: str) -> str:
        """The name of a phase for people."""
        return self.cordoned if name == "Cordoned" else name

    def count(self, number: int) -> str:
        """So much work: "1 pod", "4 jobs"."""
        return f"{number} {self.one if number == 1 else self.many}"


def _read() -> Mapping[str, ClusterWords]:
    tables = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))
    every = tables.pop("phases")
    return {
        kind: ClusterWords(kind=kind, **{**words, "phases": every | words["phases"]})
        for kind, words in tables.items()
    }


WORDS = _read()
KUBERNETES, SLURM, LOCAL = (WORDS[kind] for kind in ("kubernetes", "slurm", "local"))
