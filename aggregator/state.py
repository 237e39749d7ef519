"""The folders that the aggregator keeps its state in: made, and nobody else's, before it starts."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import make_url

from aggregator.config.settings import Config


class StateError(Exception):
    """A folder can't be made. The text names it, the key that asks for it, and what to do."""


def make_folders(config: Config) -> None:
    """Make what is missing, with mode 0700; what is there is left as it is. Raises `StateError`.

    Whether a folder can be written to is not asked here: a disk that has become read-only must
    not keep the aggregator from judging. Those who write say so.
    """
    for key, folder in _folders(config):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"{key}: the folder {folder} can't be made: {error.strerror}; make it and let this "
                "user write to it, or name another"
            ) from error


@contextmanager
def sole_user(config: Config) -> Iterator[None]:
    """Be the one aggregator on the local cluster's file. Raises `StateError` where another is.

    Two would each run the site's commands. The kernel drops the lock with the process, however that
    ends; people's `sickbay --local` takes none.
    """
    if config.cluster.kind != "local":
        yield
        return
    make_folders(config)
    database = config.cluster.local.database
    file = database.with_name(database.name + ".lock")
    try:
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StateError(
            f"cluster.local.database: {file} can't be opened: {error.strerror}; let this user "
            "write there, or name another file"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(
                f"cluster.local.database: another aggregator runs on {database}: it holds {file}; "
                "stop it first, or name another file"
            ) from None
        yield
    finally:
        os.close(lock)


def _folders(config: Config) -> Iterator[tuple[str, Path]]:
    if config.cluster.kind == "local":
        yield "cluster.local.database", config.cluster.local.database.parent
    if config.identity.kind == "token" or config.shards.on:
        yield "identity.keys_cache", config.identity.keys_cache.parent
    if config.history.is_file:
        yield "history.database", Path(make_url(config.history.database).database or "").parent
    if config.alerts.webhooks:
        yield "alerts.outbox", config.alerts.outbox.parent
