"""Whether a process is stopped, or has ended."""

import psutil


def stopped(pid: int) -> bool:
    """Whether every thread of the process is stopped. A signal takes a moment to reach them all."""
    try:
        threads = psutil.Process(pid).threads()
        states = {psutil.Process(thread.id).status() for thread in threads}
    except psutil.NoSuchProcess:
        return False
    return states == {psutil.STATUS_STOPPED}


def ended(pid: int) -> bool:
    """Gone, or only waiting for its parent to notice: where no process reaps orphans at once, a
    zombie is as good as gone.
    """
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True
