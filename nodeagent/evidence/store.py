"""The state file: in memory (``/run``) at once, on the disk (``/var/lib``) when the disk likes.

The disk itself may be faulty. So the file that counts lies in ``run_dir``, which is a tmpfs: it
survives a kill and a new pod, and goes with a reboot, as most faults do. ``disk_backup`` copies it
to ``state_dir`` afterwards, and no caller waits for that.
"""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodeagent.clock import Clock
from nodeagent.evidence.disk_backup import BackupUnreadable, read_copy
from nodeagent.evidence.latch import Latch
from nodeagent.evidence.machine_identity import MachineIdentity
from nodeagent.evidence.state import AnotherMachine, State, StateError, Unreleased, dump, restore
from nodeagent.model import Loss

log = logging.getLogger(__name__)

NAME = "state.json"


class UnreleasedState(Exception):
    """An unreleased version wrote the file: the agent neither reads nor replaces it."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is the state of an unreleased version of sickbay, which no version reads; to "
            f"start afresh, without the faults that it holds: rm {path}"
        )


class Store:
    """Loads and saves the state. ``problem`` is why the latest save failed; empty when it went.

    ``identity`` is this machine's: another machine's state is left alone. With None any state is
    taken.
    """

    def __init__(
        self,
        *,
        run_dir: Path,
        state_dir: Path,
        clock: Clock,
        identity: MachineIdentity | None = None,
    ) -> None:
        self.problem = ""
        self._identity = identity
        self._path = run_dir / NAME
        self._copy_path = state_dir / NAME
        self._clock = clock

    def load(self, *, boot_id: str, new_epoch: Callable[[], str]) -> State:
        """An earlier agent's state, or an empty one. An error becomes a Loss.

        Raises UnreleasedState.

        The file in ``run_dir`` counts if it is there. Else the copy, which may be older: the kernel
        log is then read again from where that copy ends. Waits some seconds at most.
        """
        losses: list[Loss] = []
        state = self._load_file(losses, boot_id, new_epoch)
        if state is None:
            state = self._load_copy(losses, boot_id, new_epoch)
        if state is None:
            state = State(Latch(boot_id=boot_id, epoch=new_epoch()))
        for loss in losses:
            state.latch.unacked.add_loss(loss)
        return state

    def save(self, state: State) -> bool:
        """Replace the file in ``run_dir``; false (and ``problem``) when that could not be."""
        content = json.dumps(self._document(state), separators=(",", ":")).encode()
        temporary = self._path.with_suffix(".tmp")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write_all(fd, content)
            finally:
                os.close(fd)
            temporary.rename(self._path)
        except OSError as error:
            self.problem = f"{self._path} cannot be written: {error.strerror}"
            return False
        self.problem = ""
        return True

    def _document(self, state: State) -> dict[str, Any]:
        return dump(state, self._clock.boottime(), identity=self._identity)

    def _load_file(
        self, losses: list[Loss], boot_id: str, new_epoch: Callable[[], str]
    ) -> State | None:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            losses.append(Loss("latch", 0, f"{self._path} cannot be read: {error.strerror}"))
            return None
        try:
            document = _parse(content)
            same_boot = document.get("boot_id") == boot_id
            return restore(
                document,
                boot_id=boot_id,
                new_epoch=None if same_boot else new_epoch,
                identity=self._identity,
            )
        except Unreleased:
            raise UnreleasedState(self._path) from None
        except AnotherMachine as error:
            _leave_out(self._path, error, losses)
            return None
        except StateError as error:
            aside = _set_aside(self._path)
            losses.append(Loss("latch", 0, f"{self._path} is damaged ({error}); {aside}"))
            return None

    def _load_copy(
        self, losses: list[Loss], boot_id: str, new_epoch: Callable[[], str]
    ) -> State | None:
        try:
            content = read_copy(self._copy_path)
            if content is None:
                return None
            document = _parse(content)
            state = restore(document, boot_id=boot_id, new_epoch=new_epoch, identity=self._identity)
        except Unreleased:
            raise UnreleasedState(self._copy_path) from None
        except AnotherMachine as error:
            _leave_out(self._copy_path, error, losses)
            return None
        except (BackupUnreadable, StateError) as error:
            losses.append(Loss("latch", 0, f"{self._copy_path} cannot be used: {error}"))
            return None
        if document.get("boot_id") == boot_id:
            what = f"{self._path} was gone: results newer than its copy on disk are lost"
            losses.append(Loss("latch", 0, what))
        return state


def _leave_out(path: Path, error: AnotherMachine, losses: list[Loss]) -> None:
    """Report once that another machine's state lies there, though the file and its copy are its."""
    if any(str(error) in loss.message for loss in losses):
        return
    text = f"{path} is left out: {error}"
    log.warning("%s", text)
    losses.append(Loss("latch", 0, text))


def _parse(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StateError(str(error)) from error
    if not isinstance(document, dict):
        raise StateError("it is no JSON object")
    return document


def _write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _set_aside(path: Path) -> str:
    aside = path.with_name(path.name + ".corrupt")
    try:
        path.rename(aside)
    except OSError as error:
        return f"it could not be set aside: {error.strerror}"
    return f"it was set aside as {aside.name}"
