"""Which of sickbay's SQLite files a file is, by SQLite's `application_id`.

No unreleased version wrote one: tables in a file without it are of an earlier tree, or another
program's, and are left alone.
"""

import sqlite3

#: "skbo" and "skbc".
OUTBOX = 0x736B626F
LOCAL_CLUSTER = 0x736B6263


def is_of_no_release(db: sqlite3.Connection, application: int) -> bool:
    """Whether the file has tables, and not those of this kind of file."""
    ((found,),) = db.execute("PRAGMA application_id").fetchall()
    ((tables,),) = db.execute("SELECT count(*) FROM sqlite_master").fetchall()
    return bool(tables) and found != application


def of_no_release(path: object, what: str, key: str) -> str:
    """The text for such a file. ``what`` it is, and the configuration's ``key`` for it."""
    return (
        f"{path} is {what} of an unreleased version of sickbay, which no version reads; to start "
        f"afresh, move it away, or name another file in {key}"
    )
