"""Asks the page whether the agent of every node reports: the program of `helm test`."""

import json
import ssl
import sys
import time
import urllib.request
from pathlib import Path


def main(url: str, ca_file: str, limit_s: float, token_file: str = "") -> int:
    """0 when every known node has its agent attached; 1 after ``limit_s``, with what is missing.

    ``token_file``: a token for a page that asks who its reader is.
    """
    until = time.monotonic() + limit_s
    while True:
        problem = _problem(f"{url}/api/v1/fleet", ca_file, token_file)
        if not problem:
            return 0
        if time.monotonic() > until:
            print(f"after {limit_s:g} s: {problem}", flush=True)
            return 1
        time.sleep(1)


def _problem(url: str, ca_file: str, token_file: str) -> str:
    try:
        context = ssl.create_default_context(cafile=ca_file)
        request = urllib.request.Request(url)
        if token_file:
            token = Path(token_file).read_text("utf-8").strip()
            request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            fleet = json.load(answer)
    except (OSError, ValueError) as error:
        return (
            f"the page does not answer at {url}: {error}. Look at `kubectl get pods`, and at the "
            "log of sickbay-aggregator-0"
        )
    if fleet["not_ready"]:
        return f"the aggregator is not ready: {'; '.join(fleet['not_ready'])}"
    nodes, attached = fleet["nodes"], fleet["attached"]
    if not nodes or attached < nodes:
        return (
            f"{attached} of {nodes} nodes have an agent that reports. Look at `kubectl describe "
            "daemonset sickbay-agent` and at the agents' logs. If the cluster refuses the pods "
            "(`violates PodSecurity`), label the namespace: `kubectl label --overwrite namespace "
            "NAMESPACE pod-security.kubernetes.io/enforce=privileged`"
        )
    print(f"ok: the agents of all {nodes} nodes report; mode {fleet['mode']}", flush=True)
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), *sys.argv[4:5]))
