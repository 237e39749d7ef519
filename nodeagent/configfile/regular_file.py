"""Refuses a path that is no regular file: a pipe blocks the reader, a device has no end."""

import errno
import stat
from pathlib import Path

#: Bytes. No configuration and no list of names comes near; a larger file was named by mistake.
MOST = 32 * 1024 * 1024

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def kind(path: Path) -> str:
    """The kind of object there, such as "a pipe"; empty for a regular file. Raises OSError.

    A link counts as its target: Kubernetes mounts Secrets and ConfigMaps as links.
    """
    mode = path.stat().st_mode
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "an object of another kind")


def read(path: Path) -> bytes:
    """The content of the regular file at ``path``. Raises OSError that names any other kind."""
    other = kind(path)
    if other:
        raise OSError(errno.EINVAL, f"it is {other} and no regular file", str(path))
    with path.open("rb") as file:
        content = file.read(MOST + 1)
    if len(content) > MOST:
        raise OSError(errno.EFBIG, f"it has more than {MOST >> 20} MiB", str(path))
    return content
