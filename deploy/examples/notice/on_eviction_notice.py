"""Acts once this pod has the notice of an eviction (drain.notice). No package is needed.

    on_eviction_notice.py --signal USR1 train.py    signals the oldest process of this name
    on_eviction_notice.py --answer COMMAND...       answers once the command has ended with 0

The notice comes by a volume of the downward API (docs/jobs.md). A command has NOTICE_REASON and
NOTICE_SECONDS, the time that is left. An answer needs POD_NAME, POD_NAMESPACE and answer-rbac.yaml;
without --answer the end of the pod is the answer. `read_notice` is for training loops.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

KEY, ANSWER = "sickbay.dev/eviction-requested", "sickbay.dev/eviction-ready"
PODINFO = "/podinfo/annotations"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def read_notice(file: str = PODINFO) -> dict[str, str] | None:
    """The notice: id, deadline, node, workload, reason. None without one."""
    try:
        lines = Path(file).read_text().splitlines()
        quoted = next(line for line in lines if line.startswith(f"{KEY}="))
        found: dict[str, str] = json.loads(json.loads(quoted.partition("=")[2]))
    except (OSError, StopIteration, ValueError):
        return None
    return found


def seconds_left(notice: dict[str, str]) -> int:
    # As Python 3.10 reads and names it: images of frameworks have it.
    deadline = dt.datetime.fromisoformat(notice["deadline"].replace("Z", "+00:00"))  # noqa: FURB162
    return max(0, int((deadline - dt.datetime.now(dt.timezone.utc)).total_seconds()))  # noqa: UP017


def answer(notice: dict[str, str], account: Path = ACCOUNT) -> None:
    """Set the answer on this pod."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    pod = f"namespaces/{os.environ['POD_NAMESPACE']}/pods/{os.environ['POD_NAME']}"
    request = urllib.request.Request(
        f"https://{host}:{port}/api/v1/{pod}",
        json.dumps({"metadata": {"annotations": {ANSWER: notice["id"]}}}).encode(),
        {
            "Authorization": f"Bearer {(account / 'token').read_text().strip()}",
            "Content-Type": "application/merge-patch+json",
        },
        method="PATCH",
    )
    context = ssl.create_default_context(cafile=account / "ca.crt")
    urllib.request.urlopen(request, timeout=30, context=context).close()


def oldest_process(name: str) -> int:
    """The pid of the first process with this argument; the pod shares its process namespace."""
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda one: int(one.name)):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if name in words and int(folder.name) != os.getpid():
            return int(folder.name)
    sys.exit(f"no process has the argument {name}")


def run(command: list[str], notice: dict[str, str]) -> None:
    """Run it until it succeeds."""
    while True:
        values = {"NOTICE_REASON": notice["reason"], "NOTICE_SECONDS": str(seconds_left(notice))}
        if subprocess.run(command, env={**os.environ, **values}, check=False).returncode == 0:
            return
        time.sleep(5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--file", default=PODINFO)
    parser.add_argument("--account", type=Path, default=ACCOUNT)
    parser.add_argument("--signal")
    parser.add_argument("--answer", action="store_true")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="PROCESS | COMMAND")
    chosen = parser.parse_args()
    if not chosen.words:
        parser.error("a process or a command is expected")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # PID 1 has no default for it
    while (notice := read_notice(chosen.file)) is None:
        time.sleep(1)
    if chosen.signal:
        os.kill(oldest_process(chosen.words[0]), signal.Signals[f"SIG{chosen.signal}"])
    else:
        run(chosen.words, notice)
    if chosen.answer:
        answer(notice, chosen.account)
    while True:  # a sidecar that ends is started again, and would act again
        signal.pause()


if __name__ == "__main__":
    main()
