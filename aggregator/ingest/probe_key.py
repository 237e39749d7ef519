"""The secret by which probes are assigned to nodes, on disk.

It outlives the process, and each gateway has the controller's. So after a restart or another
controller's start each agent is assigned to probe the nodes that it probed before: an agent
distinguishes "answers no more" from "never answered" by its own observations.
"""

import logging
import secrets
from pathlib import Path

from aggregator.config.settings import Config
from aggregator.runtime.private_file import replace_file

log = logging.getLogger(__name__)

#: Bytes.
SIZE = 32


def probe_key_file(config: Config) -> Path | None:
    """The file of the secret, in a folder that the aggregator has anyway, or None if it has no
    folder.
    """
    if config.cluster.file is not None:
        return config.cluster.file[1].with_name("probe-key")
    shared = config.replicas.on or config.cluster.shared_store is not None
    if config.identity.kind == "token" or shared:
        return config.identity.keys_cache.with_name("probe-key")
    return None


def load_probe_key(file: Path | None) -> bytes:
    """The secret in ``file``, created if it is missing or damaged.

    Where it can't be kept it is created for this process alone.
    """
    if file is None:
        return secrets.token_bytes(SIZE)
    try:
        found = file.read_bytes()
        if len(found) == SIZE:
            return found
    except FileNotFoundError:
        pass
    except OSError as error:
        _warn(file, error)
        return secrets.token_bytes(SIZE)
    made = secrets.token_bytes(SIZE)
    _write(file, made)
    return made


def keep_probe_key(file: Path | None, key: bytes) -> None:
    """Store another replica's secret as this one's. One of another size is none, and is ignored."""
    if file is None or len(key) != SIZE:
        return
    try:
        if file.read_bytes() == key:
            return
    except OSError:
        pass  # missing or damaged: written now
    _write(file, key)


def _write(file: Path, key: bytes) -> None:
    try:
        replace_file(file, key)
    except OSError as error:
        _warn(file, error)


def _warn(file: Path, error: OSError) -> None:
    log.warning(
        "the secret for assigning probes can't be kept; after a restart agents probe other nodes",
        extra={"file": str(file), "error": error.strerror or str(error)},
    )
