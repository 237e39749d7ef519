"""Files that this user alone may read, each replaced as a whole."""

import os
from pathlib import Path


def write_next_to(file: Path, content: bytes) -> Path:
    """A new file with the content next to ``file``, flushed to the disk. Raises OSError."""
    part = file.with_name(f"{file.name}.new")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    return part


def replace_file(file: Path, content: bytes) -> None:
    """Write the whole file, or leave the old one and raise OSError."""
    write_next_to(file, content).replace(file)
