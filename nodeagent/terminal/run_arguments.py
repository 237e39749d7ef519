"""The command lines of ``run`` and ``ready``, read without argparse.

A DaemonSet's pods keep what they import, and a prolog waits for it at every job.
"""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

DEFAULT_CONFIG = Path("/etc/sickbay/agent.toml")

#: Seconds of ``ready``: a job waits for it, and the agent answers in milliseconds.
READY_TIMEOUT = 5.0

#: The option's promise (0 unless failed) holds for a mistyped command line too.
SLURM = "--slurm"


class BadUsage(Exception):
    """An invalid command line. ``usage`` is how it is written, for people."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


def parse_run(given: Sequence[str]) -> SimpleNamespace | None:
    """The options of ``run [--config FILE]``; None for every other line, which argparse reads."""
    match list(given):
        case ["run"]:
            return SimpleNamespace(command="run", config=None)
        case ["run", "--config", file] if not file.startswith("-"):
            return SimpleNamespace(command="run", config=Path(file))
        case ["run", option] if option.startswith("--config="):
            return SimpleNamespace(command="run", config=Path(option.removeprefix("--config=")))
        case _:
            return None


def parse_ready(given: Sequence[str]) -> SimpleNamespace | None:
    """The options of ``ready [--gpus GPU,...]``, or None for every other line."""
    match list(given):
        case ["ready"]:
            gpus = ""
        case ["ready", "--gpus", gpus] if gpus and not gpus.startswith("-"):
            pass
        case _:
            return None
    return SimpleNamespace(
        command="ready", config=None, gpus=gpus, timeout=READY_TIMEOUT, output="table"
    )
