"""Errors that keep a command from being done, each with the next step."""


class CommandFailed(Exception):
    """The command could not be done: exit code 1."""


class Unreached(CommandFailed):
    """The aggregator does not answer, or its answer is not trusted."""


class UsageError(Exception):
    """The command line makes no sense: exit code 2."""
