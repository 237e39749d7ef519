"""Which of sickbay's SQLite files a file is.

A history and an outbox have a table of their revision; a local cluster has SQLite's
`application_id`. No unreleased version wrote these: tables in a file without them are of an earlier
tree, or another program's, and are left alone.
"""

import sqlite3

HISTORY_REVISIONS = "sickbay_history_version"
OUTBOX_REVISIONS = "sickbay_outbox_version"
#: "skbc".
LOCAL_CLUSTER = 0x736B6263


def is_of_no_release(db: sqlite3.Connection, mark: int | str) -> bool:
    """Whether the file has tables, and not those of this kind of file: of that `application_id`, or
    with a table of that name.
    """
    ((found,),) = db.execute("PRAGMA application_id").fetchall()
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    return bool(tables) and mark not in {found, *tables}


def of_no_release(path: object, what: str, key: str) -> str:
    """The text for such a file. ``what`` it is, and the configuration's ``key`` for it."""
    return (
        f"{path} is another program's, or {what} of an unreleased version of sickbay, which no "
        f"version reads; to start afresh, move it away, or name another file in {key}"
    )
