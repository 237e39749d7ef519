"""Refuses a path that is no regular file: a read waits on a pipe and never ends on a device."""

import errno
import stat
from pathlib import Path

#: Bytes. No certificate or list of names comes near; a larger file was named by mistake.
MOST = 32 * 1024 * 1024
#: Bytes of YAML or TOML, whose readers take seconds for each MiB. A ConfigMap holds no more.
MOST_CONFIG = 1024 * 1024
#: Bytes of a secret: a password, a token, a key. A longer one was named by mistake.
MOST_SECRET = 4096

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

    ``most`` is the largest size in bytes.
    """
    if other := kind(path):
        raise OSError(errno.EINVAL, f"it is {other} and no regular file", str(path))
    if most is not None and path.stat().st_size > most:
        raise _too_large(path, most)
    return path


def kind(path: Path) -> str:
    """The kind of file there, such as "a pipe"; empty for a regular file. Raises OSError.

    A link counts as what it leads to: Kubernetes mounts Secrets and ConfigMaps as links.
    """
    mode = path.stat().st_mode
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "a file of another kind")


def is_there(path: Path) -> bool:
    """Whether a regular file is there, as far as this user may see."""
    try:
        return not kind(path)
    except OSError:
        return False


def read(path: Path, *, most: int = MOST) -> bytes:
    """The content of a regular file. Raises OSError for any other kind and for more than ``most``
    bytes.
    """
    return _read(require_regular_file(path), most)


def read_file_or_pipe(path: Path, *, most: int = MOST) -> str:
    """The text of a regular file, or of a pipe, as of ``<(command)``. Raises OSError for any other
    kind and for more than ``most`` bytes, and UnicodeDecodeError.
    """
    if not stat.S_ISFIFO(path.stat().st_mode):
        require_regular_file(path)
    return _read(path, most).decode("utf-8-sig")


def _read(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise _too_large(path, most)
    return content


def _too_large(path: Path, most: int) -> OSError:
    size = f"{most >> 20} MiB" if most >> 20 else f"{most} bytes"
    return OSError(errno.EFBIG, f"it has more than {size}", str(path))


def version_of(*files: Path) -> tuple[tuple[int, int, int], ...]:
    """Another value once one of the files is replaced or written to. Raises OSError."""
    stats = [file.stat() for file in files]
    return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)
