"""The folders of the aggregator's state: created before it starts, and readable by its user
alone.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aggregator.config.settings import Config, history_file


class DataDirError(Exception):
    """A folder can't be made. The text names it, the key that requires it, and the next step."""


def create_data_dirs(config: Config) -> None:
    """Make missing folders, with mode 0700, and leave existing ones as they are. Raises
    `DataDirError`.

    Whether a folder can be written to is not checked here: a disk that has become read-only must
    not keep the aggregator from evaluating nodes. The writers report it.
    """
    for key, folder in _folders(config):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise DataDirError(
                f"{key}: the folder {folder} can't be made: {error.strerror}; make it and let this "
                "user write to it, or name another"
            ) from error


@contextmanager
def exclusive_lock(config: Config) -> Iterator[None]:
    """Be the only aggregator on the local cluster's file. Raises `DataDirError` where another is.

    Two aggregators would each run the site's commands. The kernel drops the lock when the process
    ends, however it ends; people's `sickbay --local` takes no lock.
    """
    if config.cluster.file is None:
        yield
        return
    create_data_dirs(config)
    key, database = config.cluster.file
    file = database.with_name(database.name + ".lock")
    try:
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise DataDirError(
            f"{'.'.join(key)}: {file} can't be opened: {error.strerror}; let this user "
            "write there, or name another file"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataDirError(
                f"{'.'.join(key)}: another aggregator runs on {database}: it holds {file}; "
                "stop it first, name another file, or share cluster.store.database"
            ) from None
        yield
    finally:
        os.close(lock)


def _folders(config: Config) -> Iterator[tuple[str, Path]]:
    if config.cluster.file is not None:
        key, database = config.cluster.file
        yield ".".join(key), database.parent
    shared = config.replicas.on or config.cluster.shared_store is not None
    if config.identity.kind == "token" or shared:
        yield "identity.keys_cache", config.identity.keys_cache.parent
    if config.history.is_file:
        yield "history.database", Path(history_file(config)).parent
    if config.alerts.receivers:
        yield "alerts.outbox", config.alerts.outbox.parent
