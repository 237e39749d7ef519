"""The folders that the aggregator keeps its state in: made, and nobody else's, before it starts."""

from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.engine import make_url

from aggregator.config import Config


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


def _folders(config: Config) -> Iterator[tuple[str, Path]]:
    if config.cluster.kind == "local":
        yield "cluster.local.database", config.cluster.local.database.parent
    if config.identity.kind == "token":
        yield "identity.keys_cache", config.identity.keys_cache.parent
    history = make_url(config.history.database)
    if history.get_backend_name() == "sqlite" and history.database:
        yield "history.database", Path(history.database).parent
    if config.alerts.webhooks:
        yield "alerts.outbox", config.alerts.outbox.parent
