"""Acting without Kubernetes: on the local cluster's own state, which the aggregator reads too."""

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from aggregator.cli import actions
from aggregator.cli.errors import CommandFailed, UsageError
from aggregator.cluster.local.place import FilePlace, StorePlace
from aggregator.cluster.local.sqlite_rows import UnreleasedFile
from aggregator.cluster.local.store import ClusterStore
from aggregator.cluster.port import (
    ClusterError,
    Conflict,
    Operation,
    OperationSpec,
    QuarantineSpec,
)
from aggregator.quarantine.decide.operator_requests import EXEMPT, PIN
from sickbay.regular_file import require_regular_file

#: Requests that a person may have made for a node, and the command that takes each back.
_REQUESTS = ((EXEMPT, "exempt", "unexempt"), (PIN, "pinned", "unpin"))


def place_of(database: Path | str) -> StorePlace:
    """The place that ``--local`` names: a file, or the URL of a database that replicas share."""
    if isinstance(database, Path):
        return FilePlace(database)
    from aggregator.config.shared_store import shared_place

    return shared_place(database)


@contextmanager
def local_actions(
    place: StorePlace,
    *,
    how: str,
    known: Callable[[str], bool] | None = None,
    dry_run: bool = False,
) -> Iterator["LocalActions"]:
    """On the state at ``place``, or in a dry run on a copy of it, which goes at the end. The other
    arguments are those of `LocalActions`. Raises UsageError where there is no such file,
    CommandFailed where no copy can be made.
    """
    if isinstance(place, FilePlace):
        _expect_ours(place.path, writes=not dry_run)
    if not dry_run:
        yield LocalActions(place, how=how, known=known)
        return
    with _scratch_copy(place) as copy:
        yield LocalActions(copy, how=how, known=known)


def _expect_ours(path: Path, *, writes: bool) -> None:
    """Raises UsageError for a file in which the aggregator would read no request. To open it as a
    `LocalStore` would make it one. ``writes``: this user has to have the right to.
    """
    try:
        why = _foreign(path, writes=writes)
    except FileNotFoundError:
        why = f"there is no database at {path}"
    except OSError as error:
        why = f"{path} can't be read: {error.strerror}"
    if why:
        raise UsageError(f"--local: {why}; expected the aggregator's cluster.local.database")


def _foreign(path: Path, *, writes: bool) -> str:
    """Why this is no local cluster's database; empty where it is one. Raises OSError."""
    if not os.access(require_regular_file(path), os.R_OK | (os.W_OK if writes else 0)):
        return f"this user may not read{' and write' if writes else ''} {path}"
    try:
        with closing(_read_only(path)) as database:
            query = "SELECT count(*) FROM sqlite_master WHERE name IN ('record', 'quarantines')"
            if database.execute(query).fetchone() == (2,):
                return ""
    except sqlite3.OperationalError:
        return ""  # another process has it; the code that opens the file reports why
    except sqlite3.DatabaseError as error:
        return f"{path} is no local cluster's database, or is damaged ({error})"
    return f"{path} is no local cluster's database: it lacks its tables"


def _read_only(path: Path) -> sqlite3.Connection:
    """Without its -wal no process has the database open. SQLite would make that file to read, which
    a user who may only read can't, and leave it there, of another owner than the aggregator.
    """
    file = path.resolve()
    is_open = file.with_name(f"{file.name}-wal").exists()
    options = "mode=ro" if is_open else "mode=ro&immutable=1"
    return sqlite3.connect(f"{file.as_uri()}?{options}", uri=True)


def _damage(place: StorePlace) -> str:
    """How the file is damaged, by SQLite's own check; empty where it is not, or is no file."""
    if not isinstance(place, FilePlace):
        return ""
    try:
        with closing(_read_only(place.path)) as database:
            ((found,),) = database.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.OperationalError:
        return ""
    except sqlite3.DatabaseError as error:
        found = error
    return "" if found == "ok" else " ".join(str(found).split())


@contextmanager
def _scratch_copy(place: StorePlace) -> Iterator[FilePlace]:
    """A copy of the state that goes at the end. Raises CommandFailed."""
    with tempfile.TemporaryDirectory(prefix="sickbay-dry-run-") as folder:
        copy = Path(folder) / "cluster.db"
        if isinstance(place, FilePlace):
            _copy_file(place.path, copy)
        else:
            _copy_rows(place, copy)
        yield FilePlace(copy)


def _copy_file(path: Path, copy: Path) -> None:
    try:
        with closing(_read_only(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except sqlite3.Error as error:
        raise CommandFailed(f"{path} can't be read: {error}") from error


def _copy_rows(place: StorePlace, copy: Path) -> None:
    try:
        with (
            closing(place.open(time.time)) as source,
            closing(FilePlace(copy).open(time.time)) as target,
        ):
            target.take_rows(source.all_rows())
    except ClusterError as error:
        raise CommandFailed(f"{error}") from error


class LocalActions:
    """`ClusterActions` on the state at ``place``.

    ``how``: the options that select it again, for people; it begins with a space. ``known``:
    whether a node of this name is known by other means than the file; None: those are out of reach.
    """

    def __init__(
        self, place: StorePlace, *, how: str, known: Callable[[str], bool] | None = None
    ) -> None:
        self._place = place
        self._how = how
        self._known = known

    def stop(self, reason: str) -> str:
        with self._store() as store:
            before = store.stopped()
            store.set_stop(reason)
            return actions.stopped(before, reason, how=self._how)

    def resume(self) -> str:
        with self._store() as store:
            before = store.stopped()
            store.set_stop("")
            return actions.resumed(before)

    def release(self, node: str) -> str:
        with self._store() as store:
            found = store.quarantine(node)
            if found is None:
                raise CommandFailed(actions.none_such(node, how=self._how))
            store.delete_quarantine(node)
            return actions.released(node, found.spec, how=self._how)

    def open_order(self, node: str) -> str:
        with self._store() as store:
            found = store.quarantine(node)
            return actions.order_open(node, found.status.repair) if found is not None else ""

    def quarantine(self, node: str, spec: QuarantineSpec) -> str:
        with self._store() as store:
            new, stop = self._if_unknown(store, node), store.stopped()
            try:
                store.create_quarantine(node, spec, finalizer=False)
            except Conflict as error:
                found = store.quarantine(node)
                if found is None:
                    raise
                change = f"release it first: sickbay release {node}{self._how}"
                raise CommandFailed(actions.already(node, found.spec, change=change)) from error
            return actions.quarantined(node, spec, stop=stop, how=self._how) + new

    def _if_unknown(self, store: ClusterStore, node: str) -> str:
        """The addition to the answer: a name that is new may be misspelt."""
        if store.node_now(node) is not None:
            return ""
        if self._known is None:
            return f"\nNote: {actions.unknown(node)}"
        return "" if self._known(node) else f"\nBUT: {actions.unknown(node)}"

    def drain_preview(self, node: str) -> str:
        """The file does not show the work: the site's commands or Slurm know it."""
        return (
            f"{node}: with cluster.kind local a drain runs the site's commands, which end the work "
            "on it; with slurm it sets DRAIN, and jobs run to their end."
        )

    def annotate(self, node: str, change: actions.AnnotationChange) -> str:
        with self._store() as store:
            new = self._if_unknown(store, node)
            if new and change.idle:
                raise CommandFailed(actions.unknown(node))
            while True:
                found = store.node(node)
                if change.idle and not change.changes(found.annotations):
                    return change.idle
                merged = {**found.annotations, **change.annotations}
                kept = {key: value for key, value in merged.items() if value is not None}
                try:
                    store.write_node(replace(found, annotations=kept))
                except Conflict:
                    continue  # the aggregator wrote in between
                return change.message + new

    def request_operation(self, name: str, spec: OperationSpec) -> str:
        with self._store() as store:
            store.operations.create(name, spec)
            return actions.operation_requested(name, spec, how=self._how)

    def operation(self, name: str) -> Operation | None:
        with self._store() as store:
            return store.operations.read(name)

    def cancel_operations(self, node: str) -> str:
        with self._store() as store:
            there = [one for one in store.operations.of(node) if one.is_open]
            if not there:
                raise CommandFailed(actions.none_open(node, how=self._how))
            for one in there:
                store.operations.cancel(one)
            return actions.operations_cancelled(node, there, how=self._how)

    def forget_node(self, node: str) -> str:
        """Take a name out of the file that belongs to no node: misspelt, or of a machine that is
        gone.
        """
        with self._store() as store:
            found = store.node_now(node)
            if store.quarantine(node) is not None:
                then = f"sickbay release {node}{self._how}"
                raise CommandFailed(actions.not_forgotten(node, "in quarantine", then=then))
            if found is None:
                raise CommandFailed(actions.unknown(node))
            for key, why, command in _REQUESTS:
                if key in found.annotations:
                    then = f"sickbay {command} {node}{self._how}"
                    raise CommandFailed(actions.not_forgotten(node, why, then=then))
            if found.taints or found.unschedulable:
                then = "the aggregator undoes that; try again when it has"
                raise CommandFailed(actions.not_forgotten(node, "marked as quarantined", then=then))
            store.delete_node(found)
            return actions.forgotten(node)

    @contextmanager
    def _store(self) -> Iterator[ClusterStore]:
        try:
            store = self._place.open(time.time)
            try:
                yield store
            finally:
                store.close()
        except UnreleasedFile as error:
            raise UsageError(f"{error}") from error
        except ClusterError as error:
            if damage := _damage(self._place):
                then = "restore it; or stop the aggregator and move it away, to begin a new one"
                raise UsageError(f"--local: {error} ({damage}); {then}") from error
            raise CommandFailed(f"{error}") from error
