"""The command line of a Python child of the agent: the interpreter at its lightest."""

import functools
import os
import sys
from importlib.util import MAGIC_NUMBER, cache_from_source

__all__ = ["bytecode_of", "light_python"]

_HEADER = 16
_UNCHECKED = 1


def light_python() -> tuple[str, ...]:
    """Without site-packages and PYTHON*, except the options that choose the bytecode that this
    process runs from.

    A child that looked for other bytecode would find none, and compile all that it imports.
    """
    command = [sys.executable, "-I", "-S"]
    if sys.flags.optimize:
        command.append("-" + "O" * sys.flags.optimize)
    if sys.pycache_prefix:
        command += ["-X", f"pycache_prefix={sys.pycache_prefix}"]
    return tuple(command)


@functools.cache
def bytecode_of(source: str) -> str:
    """The file of the script's bytecode if it is certainly of this source, else the script itself.

    Header (PEP 552): the magic number, flags, and for flags 0 the source's time and size. The
    image's bytecode has flags 1: it is never checked against a source.
    """
    try:
        compiled = cache_from_source(source)
        with open(compiled, "rb") as file:  # noqa: PTH123
            header = file.read(_HEADER)
        found = os.stat(source)  # noqa: PTH116
    except (OSError, NotImplementedError):
        return source
    magic, flags, rest = header[:4], header[4:8], header[8:]
    words = (int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF)
    is_of_it = flags == bytes(4) and rest == b"".join(word.to_bytes(4, "little") for word in words)
    trusted = flags == _UNCHECKED.to_bytes(4, "little")
    return compiled if magic == MAGIC_NUMBER and (is_of_it or trusted) else source
