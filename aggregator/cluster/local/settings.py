"""The site's own commands, as the configuration has them."""

from dataclasses import dataclass
from typing import Annotated

from aggregator.configfile.section import SectionDataclass, Strings
from aggregator.configfile.values import filled_with

Command = Annotated[Strings, filled_with("node", "reason", "action")]


@dataclass(frozen=True, slots=True)
class Commands(SectionDataclass):
    """The commands for each step, as argument lists; an empty list runs no command."""

    cordon: Command = ()
    """The command that cordons a node: a list of arguments, no shell. ``{node}``, ``{reason}`` and
    ``{action}`` are filled in. It may run again, so it must not mind.
    """
    drain: Command = ()
    """The same to drain it."""
    release: Command = ()
    """The same to release it."""
