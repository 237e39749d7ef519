"""Secrets in files, read at each use because they rotate. No error has any of their content."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from aggregator.runtime.worker_thread import WorkerThread
from sickbay.regular_file import MOST_SECRET, require_regular_file

T = TypeVar("T")


class SecretError(Exception):
    """The secret can't be read now. The text names the key, the file and what is expected."""


def read_secret(
    path: Path, name: str = "secret_file", *, most: int = MOST_SECRET, ends: bytes | None = None
) -> bytes:
    """The secret as it is now, of ``most`` bytes, without the bytes ``ends`` at its end (None:
    white space). Raises `SecretError`.
    """
    try:
        with require_regular_file(path).open("rb") as file:
            secret = file.read(most + 1).rstrip(ends)
    except OSError as error:
        raise SecretError(f"{name} {path} can't be read: {error.strerror}") from None
    if not secret or len(secret) > most:
        what = "is empty" if not secret else f"is longer than {most} bytes"
        raise SecretError(f"{name} {path} {what}; expected 1 to {most} bytes")
    return secret


def read_password(path: Path, name: str = "password_file") -> str:
    """The secret as text. A password may end with a space. Raises `SecretError`."""
    try:
        return read_secret(path, name, ends=b"\r\n").decode()
    except UnicodeDecodeError:
        raise SecretError(f"{name} {path} is no text in UTF-8") from None


async def secret_of(path: Path, read: Callable[[Path], T]) -> T:
    """The same in a thread of its own: a file system that hangs stops no event loop."""
    thread = WorkerThread("secret")
    try:
        return await thread.run(read, path)
    finally:
        thread.stop()


def read_token(path: Path, name: str = "bearer_token_file", *, most: int = MOST_SECRET) -> str:
    """The secret as text that a header can hold. Raises `SecretError`."""
    text = read_secret(path, name, most=most).decode("utf-8-sig", "replace").strip()
    if not text or not text.isascii() or not text.isprintable():
        raise SecretError(f"{name} {path} holds no token; expected one line of ASCII")
    return text
