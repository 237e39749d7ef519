"""Runs one program of the site's.

    python -I -S -E command_child.py LIMIT:KEPT:MOST HOST_ROOT COMMAND...

LIMIT is in seconds, KEPT the bytes of standard output that are kept, MOST those of both streams
after which the program is ended: reading more would cost a core.

It runs between the agent and the program, since a program may fork, hang and print without end:
every process that the program starts, even one that detaches itself, comes back to this process (a
subreaper) and is ended with it. The program gets no terminal, no open file and nothing of the
agent's environment, and is the first to go when memory runs out.

Standard output is one line of JSON: ``out`` and ``err`` (the beginning of the output), ``left``
(how many processes the program left behind) and ``stuck`` (where a process waits that SIGKILL does
not end), and one of ``exit``, ``signal``, ``errno`` (not started), ``late`` (where it waited),
``flood`` (true). When a process is stuck this one stays until it is gone. When no process reads its
output any more (the agent died) it ends them all and itself.
"""

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time

if __package__:
    from nodeagent.sources.proc_stat import read_stat
else:  # run by its path: our packages can't be imported, nor psutil (2.3 MiB and 11 ms)
    sys.path.append(os.path.dirname(__file__))  # noqa: PTH120  pathlib costs 1 MB
    from proc_stat import read_stat  # type: ignore[import-not-found,no-redef]

_PR_SET_CHILD_SUBREAPER = 36
_KEPT_ERR = 1024  # bytes
_DEATH = 2.0  # seconds that processes get to go after SIGKILL
_OOM_SCORE_ADJ = "500"
_STDOUT = 1
_CATCHABLE = [n for n in range(1, 32) if n not in (signal.SIGKILL, signal.SIGSTOP)]


class _Output:
    """The program's output: the beginning of each stream, and how much there was."""

    def __init__(self, kept: int, most: int) -> None:
        self.kept = {"out": b"", "err": b""}
        self.most = most
        self._bounds = {"out": kept, "err": _KEPT_ERR}
        self.total = 0
        self.streams: dict[int, str] = {}

    def read(self, fd: int) -> bool:
        """Take the output there is; False when the stream has ended or is empty."""
        try:
            chunk = os.read(fd, 65536)
        except BlockingIOError:
            return False
        name = self.streams[fd]
        self.total += len(chunk)
        self.kept[name] += chunk[: self._bounds[name] - len(self.kept[name])]
        return bool(chunk)


def run(
    command: list[str], limit: float, environ: dict[str, str], *, kept: int, most: int
) -> dict[str, object]:
    """Run it to its end, its limit or its flood; all that it started is ended then."""
    output = _Output(kept, most)
    ends: dict[str, int] = {}
    for name in output.kept:
        reading, ends[name] = os.pipe()
        os.set_blocking(reading, False)
        output.streams[reading] = name
    try:
        pid = os.posix_spawn(
            command[0],
            command,
            environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, ends["out"], 1),
                (os.POSIX_SPAWN_DUP2, ends["err"], 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=_CATCHABLE,  # Python, or the agent's parent, may ignore them
        )
    except OSError as error:
        return {"errno": error.errno or 0}
    for end in ends.values():
        os.close(end)
    result = _watch(pid, output, time.monotonic() + limit)
    left, stuck = end_all()
    texts = {name: text.decode("utf-8", "replace") for name, text in output.kept.items()}
    return {**result, **texts, "left": left if "exit" in result else 0, "stuck": stuck}


def _watch(pid: int, output: _Output, deadline: float) -> dict[str, object]:
    poll = select.poll()
    ended = os.pidfd_open(pid)
    poll.register(ended, select.POLLIN)
    poll.register(_STDOUT, 0)  # an error alone: our reader has gone
    for fd in output.streams:
        poll.register(fd, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        ready = dict(poll.poll(left * 1000))
        if _STDOUT in ready:
            end_all()
            os._exit(0)
        if ended in ready:
            # Do not wait for the streams' end: processes that it left behind may hold them open.
            for fd in output.streams:
                while output.total < output.most and output.read(fd):
                    pass
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            return {"signal": -code} if code < 0 else {"exit": code}
        for fd in ready.keys() & output.streams.keys():
            if not output.read(fd):
                poll.unregister(fd)
        if output.total >= output.most:
            return {"flood": True}
    return {"late": _where(pid)}


def end_all() -> tuple[int, str]:
    """End every process below this one: how many there were, and where one waits that stays."""
    give_up = time.monotonic() + _DEATH
    pause, first = 0.001, -1
    while True:
        living = [pid for pid in _below(os.getpid()) if _where(pid)]
        first = len(living) if first < 0 else first
        for pid in living:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return first, ""
        if time.monotonic() > give_up:
            return first, ", ".join(f"process {pid}: {_where(pid) or 'gone'}" for pid in living[:3])
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _below(parent: int) -> list[int]:
    """All processes that descend from ``parent`` now; some may be zombies."""
    found: list[int] = []
    waiting = [parent]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def _children(parent: int) -> list[int]:
    tasks = f"/proc/{parent}/task"
    try:
        text = " ".join(_read(f"{tasks}/{task}/children") for task in os.listdir(tasks))  # noqa: PTH208
    except FileNotFoundError:
        if os.path.exists(f"/proc/self/task/{os.getpid()}/children"):  # noqa: PTH110
            return []  # it has just ended
        return _children_by_stat(parent)  # a kernel without CONFIG_PROC_CHILDREN
    except OSError:
        return []
    return [int(pid) for pid in text.split()]


def _children_by_stat(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208  pathlib costs 1 MB
        if name.isdigit():
            stat = read_stat(f"/proc/{name}/stat")
            if stat is not None and stat.parent == parent:
                found.append(int(name))
    return found


def _where(pid: int) -> str:
    """The state of a process and the kernel function in which it waits; empty when it has ended."""
    stat = read_stat(f"/proc/{pid}/stat")
    if stat is None or stat.state in "ZX":
        return ""
    try:
        function = _read(f"/proc/{pid}/wchan").strip()
    except OSError:
        function = ""
    return stat.state if function in ("", "0") else f"{stat.state} in {function}"


def _read(path: str) -> str:
    with open(path, errors="replace") as file:  # noqa: PTH123  pathlib costs 1 MB
        return file.read()


def main(limits: str, host_root: str, *command: str) -> None:
    """Run the command, print its result, wait for stuck processes."""
    limit, kept, most = limits.split(":")
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o077)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
            file.write(_OOM_SCORE_ADJ)
    except OSError:
        pass  # refused: then it is as likely to go as the agent is
    environ = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "HOME": "/",
        "SICKBAY_HOST_ROOT": host_root,
    }
    result = run(list(command), float(limit), environ, kept=int(kept), most=int(most))
    line = json.dumps(result).encode() + b"\n"
    while line:  # a pipe holds 64 KiB
        line = line[os.write(_STDOUT, line) :]
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
