"""Refuses a path that is no regular file: a read waits on a pipe and never ends on a device."""

import errno
import stat
from pathlib import Path

#: Bytes. No configuration, policy or certificate comes near; a larger file was named by mistake.
MOST = 32 * 1024 * 1024

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def require_regular_file(path: Path, *, most: int | None = None) -> Path:
    """``path``, if a regular file is there. Raises OSError that states which kind of file is there,
    or that there is no file.

    ``most`` is the largest size in bytes. A link counts as what it leads to: Kubernetes mounts
    Secrets and ConfigMaps as links.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind} and no regular file", str(path))
    if most is not None and found.st_size > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB", str(path))
    return path


def version_of(*files: Path) -> tuple[tuple[int, int, int], ...]:
    """Another value once one of the files is replaced or written to. Raises OSError."""
    stats = [file.stat() for file in files]
    return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)
