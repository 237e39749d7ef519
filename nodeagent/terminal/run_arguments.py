"""The command line of ``run``, read without argparse: a DaemonSet's pods keep what they import."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

DEFAULT_CONFIG = Path("/etc/sickbay/agent.toml")

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
