"""The record of operations on the node's disk: durable before an act, or there is no act.

One file, replaced whole: written next to it, fsync, rename, fsync of the folder. A disk that hangs
holds a thread and not the agent; as long as it hangs every order is refused.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodeagent.evidence.machine_identity import MachineIdentity, read_identity
from nodeagent.repair.operation import Operations, RecordUnusable
from sickbay.json_text import read_json

__all__ = ["DETAILS", "NAME", "Journal", "NotRecorded"]

log = logging.getLogger(__name__)

#: The record, and what belongs to one operation each, in the folder of the record.
NAME = "operations.json"
DETAILS = "details-*.json"
_LARGEST = 16 << 20
#: Operations whose evidence and results are kept.
_MOST_DETAILS = 64


class NotRecorded(Exception):
    """The record could not be read or written; the text states why and what to do."""


class Journal:
    """The files in ``folder``. ``patience`` bounds each read and write, in seconds.

    ``identity`` is this machine's: another one's record, which a disk or an image brought along, is
    set aside. With None any record is taken.
    """

    def __init__(
        self, folder: Path, *, identity: MachineIdentity | None = None, patience: float = 20.0
    ) -> None:
        self._folder = folder
        self._identity = identity
        self._patience = patience
        self._hangs = False
        self._lock = -1
        #: One access at a time, so that one that waits is not taken for one that hangs.
        self._turn = asyncio.Lock()

    async def load(self) -> Operations:
        """Raises NotRecorded, for a record that is malformed too: it must not count from zero."""
        operations: Operations = await self._guarded(self._load)
        return operations

    async def save(self, operations: Operations) -> None:
        """When this returns the record is on the disk. Raises NotRecorded."""
        machine = {} if self._identity is None else {"machine": self._identity.dump()}
        content = json.dumps(operations.as_json() | machine, separators=(",", ":")).encode()
        await self._guarded(lambda: self._replace(NAME, content))

    async def save_details(self, operation_id: str, details: dict[str, Any]) -> None:
        """Evidence and results of one operation. Raises NotRecorded."""
        content = json.dumps(details, separators=(",", ":")).encode()
        await self._guarded(lambda: self._replace_details(operation_id, content))

    async def details(self, operation_id: str) -> dict[str, Any]:
        """Empty when there are none (any more), or they cannot be read: results do without them."""
        try:
            found: dict[str, Any] = await self._guarded(lambda: self._read_details(operation_id))
        except NotRecorded:
            return {}
        return found

    def _load(self) -> Operations:
        with contextlib.suppress(OSError):  # a filesystem without locks; a write reports the others
            self._claim()
        path = self._folder / NAME
        try:
            content = _read(path)
        except FileNotFoundError:
            return Operations()
        try:
            document = read_json(content)
            found = Operations.of(document)
            theirs = read_identity(document)
        except (ValueError, TypeError, RecordUnusable) as error:
            raise NotRecorded(
                f"{path} is malformed ({error}): no order is obeyed; see which repairs were done, "
                "move the file away and restart the agent"
            ) from error
        if theirs is None or self._identity is None or not self._identity.is_other_hardware(theirs):
            return found
        aside = path.with_name(f"{NAME}.other-machine")
        path.rename(aside)
        difference = self._identity.difference(theirs)
        log.warning("%s is of another machine (%s); it is %s now", path, difference, aside.name)
        return Operations()

    def _claim(self) -> None:
        """Lock the folder: of two agents each would lose the other's operations.

        Raises NotRecorded, and OSError. The kernel frees the lock when the process ends.
        """
        if self._lock < 0:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._lock = os.open(self._folder / "lock", flags, 0o600)
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise NotRecorded(
                f"{self._folder} is another agent's: no order is obeyed; stop that agent, or give "
                "this one its own state_dir"
            ) from None

    def _replace(self, name: str, content: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = self._folder / name
        temporary = target.with_name(name + ".tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.rename(target)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _replace_details(self, operation_id: str, content: bytes) -> None:
        self._replace(_details_name(operation_id), content)
        files = sorted(self._folder.glob(DETAILS), key=lambda path: path.stat().st_mtime)
        for old in files[:-_MOST_DETAILS]:
            old.unlink(missing_ok=True)

    def _read_details(self, operation_id: str) -> dict[str, Any]:
        try:
            document = read_json(_read(self._folder / _details_name(operation_id)))
        except (FileNotFoundError, ValueError):
            return {}
        return document if isinstance(document, dict) else {}

    async def _guarded(self, work: Callable[[], Any]) -> Any:
        async with self._turn:
            return await self._in_a_thread(work)

    async def _in_a_thread(self, work: Callable[[], Any]) -> Any:
        if self._hangs:
            raise NotRecorded(
                f"the disk of {self._folder} hangs; no order is obeyed until it works"
            )
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        self._hangs = True

        def settle(result: Any, error: Exception | None) -> None:
            self._hangs = False
            if done.cancelled() or done.done():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def run() -> None:
            result, failure = None, None
            try:
                result = work()
            except Exception as error:  # noqa: BLE001  # it is raised again in the event loop
                failure = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, failure)

        threading.Thread(target=run, name="repair-record", daemon=True).start()
        finished, _ = await asyncio.wait({done}, timeout=self._patience)
        if not finished:
            done.cancel()  # a late error is nobody's
            raise NotRecorded(f"{self._folder}: no answer of the disk in {self._patience:g} s")
        try:
            return done.result()
        except OSError as error:
            raise NotRecorded(
                f"{error.filename or self._folder}: {error.strerror}; state_dir must be a folder "
                "on a disk that works, because an order is recorded before it is obeyed"
            ) from error


def _details_name(operation_id: str) -> str:
    return DETAILS.replace("*", hashlib.blake2b(operation_id.encode(), digest_size=12).hexdigest())


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"it has more than {_LARGEST} bytes")
    return content
