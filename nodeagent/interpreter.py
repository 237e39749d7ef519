"""The command line of a Python child of the agent: the interpreter at its lightest."""

import sys

__all__ = ["light_python"]


def light_python() -> tuple[str, ...]:
    """Without site-packages and PYTHON*, except what says which bytecode this process runs from.

    A child that looked for other bytecode would find none, and compile all that it imports.
    """
    command = [sys.executable, "-I", "-S"]
    if sys.flags.optimize:
        command.append("-" + "O" * sys.flags.optimize)
    if sys.pycache_prefix:
        command += ["-X", f"pycache_prefix={sys.pycache_prefix}"]
    return tuple(command)
