"""What a person names as a file is one: a pipe is waited for, a device read without an end."""

import errno
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def regular(path: Path) -> Path:
    """``path``, if a regular file is there. Raises OSError that says what else is, or that nothing.

    A link counts as what it leads to: Kubernetes mounts Secrets and ConfigMaps as links.
    """
    mode = path.stat().st_mode
    if stat.S_ISREG(mode):
        return path
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    raise OSError(errno.EINVAL, f"it is {kind} and no regular file", str(path))
