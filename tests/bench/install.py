"""An install by the command of docs/install.md, and an upgrade, on a real control plane.

Each pod is a container made of this machine's own root (tests/chart/kubelet.py), so that the time
to the first page has no download of an image in it. Run by `make bench-install`.
"""

import re
import shlex
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.figures import read, table, write
from tests.bench.small import SMALL
from tests.chart import own_network
from tests.chart.installation import (
    AGGREGATOR,
    NODES,
    Installation,
    cluster,
    node_facts,
    older_chart,
    written_nodes,
)
from tests.chart.templates import CHART
from tests.controlplane import binaries
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until
from tests.deploy.manifests import ROOT
from tests.support.present import present

#: Options whose value is a file that must be there.
_FILE_OPTIONS = ("-f", "--values", "--set-file", "--from-file", "-k", "--filename")


def documented_commands() -> list[list[str]]:
    """The commands of the first block of docs/install.md, each as its words."""
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    block = present(re.search(r"```\w*\n(.*?)```", page, re.DOTALL))
    text = block[1].replace("\\\n", " ").replace("YOUR-REGISTRY", "images.example.test")
    return [shlex.split(line, comments=True) for line in text.splitlines() if line.strip()]


def files_by_hand(commands: list[list[str]]) -> int:
    """How many files the commands name that are not in the tree: a person has to write these."""
    named = [
        command[number + 1]
        for command in commands
        for number, word in enumerate(command[:-1])
        if word in _FILE_OPTIONS
    ]
    return sum(1 for name in named if not (ROOT / name).exists())


def first_page_s(installation: Installation, commands: list[list[str]]) -> float:
    """Seconds from the first command to a page that shows the agent of every node."""
    began = time.monotonic()
    for command in commands:
        installation.run(*command)
    installation.until_all_report(NODES)
    return time.monotonic() - began


def upgrade(installation: Installation, folder: Path) -> tuple[float, int]:
    """An upgrade from an older chart: seconds without a stream at most, and nodes touched."""
    plane = installation.plane
    installation.helm_do("install", str(older_chart(folder)))
    installation.until_all_report(NODES)
    before, mark, since = node_facts(plane), plane.audit_mark(), time.monotonic()
    ended = len(installation.kubelets.past)
    installation.helm_do("upgrade", str(CHART))
    wait_until(
        lambda: len(installation.kubelets.past) >= ended + NODES + 1,
        what="every pod to be replaced",
        timeout_s=300,
    )
    installation.until_all_report(NODES)
    after = node_facts(plane)
    touched = {name for name in before if before[name] != after.get(name)}
    touched |= set(written_nodes(plane, mark, AGGREGATOR))
    return installation.lost_streams_s(since), len(touched)


def uninstall(installation: Installation) -> None:
    """Remove the release, and wait until its containers have ended."""
    installation.helm_do("uninstall")
    installation.until_none_runs()


def measure(plane: ControlPlane, folder: Path) -> dict[str, float | int | str]:
    """Every figure of an install that needs a cluster."""
    commands = documented_commands()
    installation = Installation(plane, binaries.program("helm"), folder)
    with installation.kubelets:
        page = first_page_s(installation, commands)
        uninstall(installation)
        lost, touched = upgrade(installation, folder)
    return {
        "commands": len(commands),
        "files_by_hand": files_by_hand(commands),
        "first_page_s": round(page, 1),
        "upgrade_lost_streams_s": round(lost, 1),
        "nodes_touched": touched,
    }


def image_sizes() -> dict[str, float | int | str]:
    """The images' sizes in MiB, if `make test-images` has measured them."""
    found = read("images")
    keys = ("image_agent_mib", "image_aggregator_mib")
    return {key: found[key] for key in keys if key in found}


def main() -> int:
    """0 when every figure is within its bound."""
    if SMALL:  # Helm and its cluster's containers are `make deploy-check`'s: minutes to build
        commands = documented_commands()
        counted = {"commands": len(commands), "files_by_hand": files_by_hand(commands)}
        print(write("install", counted | image_sizes()))
        return 0
    if not own_network.is_own():
        print("run `make bench-install`: it needs a network of its own", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="sickbay-install-") as name:
        folder = Path(name)
        with cluster(folder / "plane", nodes=NODES) as plane:
            figures = measure(plane, folder) | image_sizes()
    bounds = {"commands": 1, "files_by_hand": 0, "upgrade_lost_streams_s": 30, "nodes_touched": 0}
    rows = [
        (key, str(value), f"at most {bounds[key]}" if key in bounds else "")
        for key, value in figures.items()
    ]
    print(table(f"An install with Helm, {NODES} nodes", rows))
    print(write("install", figures))
    return 1 if any(float(figures[key]) > bound for key, bound in bounds.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
