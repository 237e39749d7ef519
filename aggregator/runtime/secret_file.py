"""Secrets in files, read at each use because they rotate. No error has any of their content."""

from pathlib import Path

from aggregator.runtime.worker_thread import WorkerThread
from sickbay.regular_file import MOST_SECRET, require_regular_file


class SecretError(Exception):
    """The secret can't be read now. The text names the key, the file and what is expected."""


def read_secret(path: Path, name: str = "secret_file", *, most: int = MOST_SECRET) -> bytes:
    """The secret as it is now, of ``most`` bytes. Raises `SecretError`."""
    try:
        with require_regular_file(path).open("rb") as file:
            secret = file.read(most + 1).rstrip()
    except OSError as error:
        raise SecretError(f"{name} {path} can't be read: {error.strerror}") from None
    if not secret or len(secret) > most:
        what = "is empty" if not secret else f"is longer than {most} bytes"
        raise SecretError(f"{name} {path} {what}; expected the shared secret")
    return secret


async def secret_of(path: Path) -> bytes:
    """The same in a thread of its own: a file system that hangs stops no event loop."""
    thread = WorkerThread("secret")
    try:
        return await thread.run(read_secret, path)
    finally:
        thread.stop()


def read_token(path: Path, name: str = "bearer_token_file", *, most: int = MOST_SECRET) -> str:
    """The secret as text that a header can hold. Raises `SecretError`."""
    text = read_secret(path, name, most=most).decode("utf-8-sig", "replace").strip()
    if not text.isascii() or not text.isprintable():
        raise SecretError(f"{name} {path} holds no token; expected one line of ASCII")
    return text
