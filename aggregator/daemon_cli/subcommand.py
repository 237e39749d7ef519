"""A command of ``sickbay-aggregator``, with its purpose in its own help too."""

import argparse
from typing import Any


def add_command(group: Any, name: str, purpose: str, more: str = "") -> argparse.ArgumentParser:
    """Add the command to ``group``. ``more``: further sentences of its own help."""
    made: argparse.ArgumentParser = group.add_parser(
        name,
        help=purpose,
        description=f"{purpose[0].upper()}{purpose[1:]}.{f' {more}' if more else ''}",
        allow_abbrev=False,
    )
    return made
