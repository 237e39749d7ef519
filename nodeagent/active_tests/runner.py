"""Runs a test profile: one program after the other, each with its own time limit."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from nodeagent.active_tests.evaluate import evaluate
from nodeagent.active_tests.host import HostPrograms
from nodeagent.active_tests.model import Step, TestReport, Verdict, overall
from nodeagent.active_tests.profile import Profile, StepSpec
from nodeagent.clock import Clock
from nodeagent.dataclass import dataclass
from nodeagent.interpreter import light_python
from nodeagent.sources.command import CommandProcess

__all__ = ["Node", "run_profile", "unmet"]

#: DCGM's JSON of eight GPUs has some 100 KiB.
_KEPT = 512 * 1024
_FOLDER = Path(__file__).parent
#: Removes a folder, and makes it anew if its mode is given.
_RENEW = """
import os, shutil, sys
folder, mode = sys.argv[1:]
shutil.rmtree(folder, ignore_errors=True)
if mode:
    os.makedirs(folder, int(mode, 8), exist_ok=True)
"""
#: Seconds; an hour's files of fio take some.
_RENEW_LIMIT = 60.0
#: The characters of an address: no word that a program would take for an option.
_PEER = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:-_%")


@dataclass(frozen=True, slots=True)
class Node:
    """The node as a test needs it. ``models`` are the GPUs' names; fewer where NVML gives none.

    ``scratch`` is a folder for the tests' files, which is made and removed.
    """

    gpus: int
    models: Sequence[str]
    scratch: Path
    peer: str = ""


def unmet(needs: Sequence[str], node: Node) -> str:
    """The ``needs`` that the node lacks; empty if nothing. ``idle`` is for the caller to see."""
    if "gpu" in needs and node.gpus < 1:
        return "the node has no GPU"
    if "gpus" in needs and node.gpus < 2:
        return f"it needs two GPUs, and the node has {node.gpus}"
    if "peer" in needs and not is_peer(node.peer):
        return "it needs the address of a node at the other end"
    return ""


def is_peer(address: str) -> bool:
    """Whether it is an address, and no option of a program."""
    return 0 < len(address) <= 253 and address[0] != "-" and set(address) <= _PEER


async def run_profile(
    profile: Profile,
    *,
    node: Node,
    programs: HostPrograms,
    clock: Clock,
    on_step: Callable[[Step], None] = lambda _: None,
) -> TestReport:
    """All steps, in order. A step that fails does not spare the next ones: each is evidence."""
    steps: list[Step] = []
    try:
        await _renew(node.scratch, mode="0700")
        for spec in profile.steps:
            step = await _run_step(spec, node, programs, clock)
            steps.append(step)
            on_step(step)
    finally:
        await _renew(node.scratch)
    return overall(profile.name, steps)


async def _run_step(spec: StepSpec, node: Node, programs: HostPrograms, clock: Clock) -> Step:
    def no_run(outcome: Verdict, reason: str, message: str) -> Step:
        required = spec.required and reason != "not-applicable"
        return Step(spec.name, outcome, reason, message, required=required)

    lacking = unmet(spec.needs, node)
    if lacking:
        return no_run(Verdict.SKIPPED, "not-applicable", lacking)
    tool = programs.find(spec.command[0])
    if tool is None:
        message = f"there is no {spec.command[0]} in {':'.join(programs.path)} of the host"
        return no_run(Verdict.SKIPPED, "missing-tool", message)
    if len(node.models) < node.gpus and any(each.model for each in spec.thresholds):
        message = "thresholds depend on the GPU's model, and NVML does not name all GPUs"
        return no_run(Verdict.INCONCLUSIVE, "unknown-model", message)
    seen = programs.view(node.scratch)
    if any("{scratch}" in word for word in spec.command) and not os.access(seen, os.W_OK):
        message = (
            f"programs of the host cannot write to {node.scratch}: mount state_dir, writable, at "
        )
        return no_run(Verdict.INCONCLUSIVE, "no-scratch", f"{message}{Path(seen).parent} too")
    began = clock.boottime()
    ended = await programs.run(
        [tool, *(_word(each, node) for each in spec.command[1:])], limit=spec.limit, kept=_KEPT
    )
    return evaluate(spec, ended, models=node.models, seconds=clock.boottime() - began)


def _word(word: str, node: Node) -> str:
    if word.startswith("@"):
        return (_FOLDER / word[1:]).read_text(encoding="utf-8")
    return (
        word.replace("{peer}", node.peer)
        .replace("{gpus}", str(node.gpus))
        .replace("{scratch}", str(node.scratch))
    )


async def _renew(folder: Path, mode: str = "") -> None:
    """Remove ``folder``, and with a ``mode`` make it anew. A disk that gives an error, or hangs,
    fails the step that writes to it, and holds a child and not the agent.
    """
    command = [*light_python(), "-c", _RENEW, str(folder), mode]
    await CommandProcess(command, time_limit=_RENEW_LIMIT, host_root=Path("/")).run()
