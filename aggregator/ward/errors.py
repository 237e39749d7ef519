"""What keeps a command from being done, each with what to do."""


class WardError(Exception):
    """The command could not be done: exit code 1."""


class UsageError(Exception):
    """The command line makes no sense: exit code 2."""
