"""The small files of ``/sys`` and ``/proc``: a checked node reads hundreds of them a minute."""

import os
from pathlib import Path

_MOST = 4096
_CHUNK = 65_536


def read_small(path: str | os.PathLike[str]) -> str | None:
    """The first 4,096 bytes as ASCII, without the space around them; an unreadable file gives None.

    A quarter of the CPU of ``Path.read_text``, which makes a buffer and a decoder for each file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None  # gone, or a kernel without it
    try:
        return os.read(descriptor, _MOST).decode("ascii", "replace").strip()
    except OSError:
        return None  # asleep (EINVAL), or it ended between the two
    finally:
        os.close(descriptor)


def read_whole(path: str | os.PathLike[str], most: int = 0) -> bytes:
    """All of a file of ``/proc``, or its first ``most`` bytes. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = chunk = os.read(descriptor, _CHUNK)
        while chunk and not 0 < most <= len(content):
            content += (chunk := os.read(descriptor, _CHUNK))
    finally:
        os.close(descriptor)
    return content[:most] if most else content


def small_text(path: str | os.PathLike[str]) -> str:
    """The same, empty where it can't be read."""
    return read_small(path) or ""


def small_number(path: str | os.PathLike[str], base: int = 10) -> int | None:
    """The number that is all of a file; a file without one, or unreadable, gives None."""
    try:
        number = int(small_text(path), base)
    except ValueError:
        return None
    return number if number >= 0 else None


def entries(folder: Path) -> list[Path]:
    """The entries in order of their names; a folder that can't be read has none."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def entry_names(folder: Path) -> list[str]:
    """The names of the entries, in order; a folder that can't be read has none."""
    return [each.name for each in entries(folder)]
