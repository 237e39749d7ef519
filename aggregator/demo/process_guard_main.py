"""Ends processes when the process that started them is gone, however it went.

Run as a program with a folder (or "") as its argument. Reads process ids from its standard input,
one a line. At the end of the input it kills each of them and removes the folder if one was named.
The kernel closes the other end of the pipe when the starter dies, by SIGKILL too. (PR_SET_PDEATHSIG
would not do: it fires when the *thread* that started a server ends.)

It imports nothing but the standard library, as it runs isolated (`python -I -S`).
"""

import contextlib
import os
import shutil
import signal
import sys


def main() -> None:
    """Watch over the pids that come in until there is no sender left."""
    folder = sys.argv[1]
    guarded: list[int] = []
    for line in sys.stdin:
        # A pidfd means this very process, whichever process may get its number later. One that is
        # gone already needs no guard.
        with contextlib.suppress(ProcessLookupError):
            guarded.append(os.pidfd_open(int(line)))
    for process in guarded:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
