"""The acts of an order: reset GPUs, reboot. Fixed programs with fixed arguments.

Facts (NVSentinel issues 1690 and 1691, PR 1243; gpu-operator issue 118): ``nvidia-smi --gpu-reset``
is refused with exit code 255 and "In use by another client" while any process has the GPU open. It
drops and restores persistence mode itself if it reaches the daemon's socket; without the socket it
is refused until persistence mode is off. In clouds that block the reset it prints "Unknown Error".
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nodeagent.active_tests.host import HostPrograms
from nodeagent.config.settings import RepairConfig
from nodeagent.dataclass import dataclass
from nodeagent.repair import evidence
from nodeagent.repair.operation import RepairState
from nodeagent.sources.command import CommandStuck, Outcome

__all__ = ["ActEnd", "reboot_ended", "reset_ended", "reset_gpus"]

_PERSISTENCE_LIMIT = 60.0


@dataclass(frozen=True, slots=True)
class ActEnd:
    """How an act ended: a state of the contract, a reason and a sentence."""

    state: str
    reason: str
    message: str


async def reset_gpus(
    gpus: Sequence[str],
    *,
    programs: HostPrograms,
    config: RepairConfig,
    check: Callable[[], None],
) -> ActEnd:
    """Reset ``gpus`` (UUIDs) and look whether each answers again.

    ``check`` raises where the reset must not begin. It is called before each step up to the reset,
    because each may have waited for the driver.
    """
    smi, root = str(config.nvidia_smi), config.driver_root
    check()
    persistent = await _persistent(gpus, programs, config)
    try:
        for uuid in persistent:
            check()
            await programs.run([smi, "-pm", "0", "-i", uuid], limit=_PERSISTENCE_LIMIT, below=root)
        check()
        outcome = await programs.run(
            [smi, "--gpu-reset", "-i", ",".join(gpus)], limit=config.reset_limit, below=root
        )
    finally:
        for uuid in persistent:
            await programs.run([smi, "-pm", "1", "-i", uuid], limit=_PERSISTENCE_LIMIT, below=root)
    ended = reset_ended(outcome)
    if ended.state != RepairState.SUCCEEDED:
        return ended
    return _proved(gpus, await evidence.gpus(programs, config))


async def _persistent(
    gpus: Sequence[str], programs: HostPrograms, config: RepairConfig
) -> list[str]:
    """The GPUs whose persistence mode nvidia-smi cannot drop itself."""
    socket = Path(programs.view(config.driver_root)) / str(config.persistence_socket).lstrip("/")
    host_socket = Path(programs.view()) / str(config.persistence_socket).lstrip("/")
    if socket.is_socket() or host_socket.is_socket():
        return []
    rows = await evidence.gpus(programs, config)
    if isinstance(rows, str):
        return []
    on = {row["uuid"] for row in rows if row["persistence_mode"] == "Enabled"}
    return [uuid for uuid in gpus if uuid in on]


def reset_ended(outcome: Outcome | CommandStuck) -> ActEnd:
    """The meaning of the end of ``nvidia-smi --gpu-reset``. Pure."""
    if isinstance(outcome, CommandStuck):
        return ActEnd(RepairState.UNKNOWN, "stuck", f"nvidia-smi hangs: {outcome.where}")
    if outcome.broken or outcome.errno is not None:
        what = outcome.broken or f"nvidia-smi cannot be started (error {outcome.errno})"
        return ActEnd(RepairState.FAILED, "not-started", what)
    output = " ".join(f"{outcome.out} {outcome.err}".split())[:600]
    if outcome.late is not None:
        where = f" (it waited: {outcome.stuck or outcome.late})"
        return ActEnd(RepairState.UNKNOWN, "timeout", f"nvidia-smi did not end in time{where}")
    if outcome.signal is not None:
        return ActEnd(RepairState.UNKNOWN, "killed", f"nvidia-smi ended by signal {outcome.signal}")
    if outcome.flood:
        return ActEnd(RepairState.UNKNOWN, "flood", "nvidia-smi printed without end and was ended")
    if "in use by another client" in output.lower():
        return ActEnd(RepairState.FAILED, "in-use", output)
    if "unknown error" in output.lower():
        return ActEnd(RepairState.FAILED, "unknown-error", output)
    if outcome.exit:
        return ActEnd(
            RepairState.FAILED, "exit-code", f"nvidia-smi ended with {outcome.exit}: {output}"
        )
    return ActEnd(RepairState.SUCCEEDED, "", output)


def _proved(gpus: Sequence[str], rows: list[dict[str, str]] | str) -> ActEnd:
    """Exit code 0 alone proves nothing: each GPU must answer again."""
    if isinstance(rows, str):
        return ActEnd(RepairState.FAILED, "not-back", f"the reset ended with 0, and then {rows}")
    there = {row["uuid"] for row in rows}
    missing = [uuid for uuid in gpus if uuid not in there]
    if missing:
        return ActEnd(RepairState.FAILED, "not-back", f"after the reset: no {', '.join(missing)}")
    return ActEnd(RepairState.SUCCEEDED, "", f"reset, and they answer: {', '.join(gpus)}")


def reboot_ended(outcome: Outcome | CommandStuck, command: Sequence[str]) -> ActEnd | None:
    """A reboot that was refused. None when the command was obeyed, or may have been. Pure."""
    if isinstance(outcome, CommandStuck):
        return None
    if outcome.broken or outcome.errno is not None:
        what = outcome.broken or f"{command[0]} cannot be started (error {outcome.errno})"
        return ActEnd(RepairState.FAILED, "not-started", what)
    if outcome.exit:
        output = " ".join(f"{outcome.out} {outcome.err}".split())[:600]
        return ActEnd(
            RepairState.FAILED, "exit-code", f"{command[0]} ended with {outcome.exit}: {output}"
        )
    return None


#: The caps of the configuration, by verb.
def caps(config: RepairConfig) -> Mapping[str, int]:
    return {
        "gpu-reset": config.max_gpu_resets,
        "reboot": config.max_reboots,
        "test": config.max_tests,
    }
