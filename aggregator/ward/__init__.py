"""The command `sickbay`: what the page shows, in a terminal; and what a person may do.

Reading asks the aggregator's API. Acting goes to the cluster itself, with the person's own rights,
so that it works while every aggregator is down.
"""

from aggregator.ward.cli import main

__all__ = ["main"]
