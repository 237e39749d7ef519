"""`sickbay bundle NODE`: all that is known of a node, in one archive for a ticket or an RMA.

The content is made by pure functions; `archive` packs it.
"""

import datetime as dt
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from aggregator.cli.output import Answer
from aggregator.cli.past import PAGE, transitions
from aggregator.cli.secret_patterns import MARK, scrubbed
from aggregator.cli.source import Source
from aggregator.cli.text_table import clean

#: Transitions of an archive.
_MOST = 5000
#: Annotations of other parties may hold anything; ours state what sickbay did.
_OURS = "sickbay.dev/"
_ABOUT = {
    "node.json": "the aggregator's view: state, evidence, faults, checks, quarantine, traits",
    "history.json": "what happened to the node, the latest first",
    "kernel-lines.txt": "the faults with the kernel's own lines, the oldest first",
    "versions.json": "versions of sickbay, the driver, the kernel and Kubernetes",
    "quarantine.json": "the Quarantine object",
    "kubernetes-node.json": "the Node object, without the annotations of other parties",
    "operations.json": "the Operation objects of its repairs",
    "events.json": "Kubernetes Events about the node",
}


@dataclass
class Content:
    """The files by name, and why some are missing."""

    files: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add(self, name: str, value: Any) -> None:
        """A file with plain values as JSON, without secrets."""
        self.files[name] = json.dumps(scrubbed(value), indent=2, ensure_ascii=True) + "\n"


def node_object(found: Mapping[str, Any]) -> Answer:
    """The Node object without what is of no use for a repair, or not ours to pass on."""
    meta = dict(found.get("metadata") or {})
    meta.pop("managedFields", None)
    annotations = meta.get("annotations") or {}
    meta["annotations"] = {key: text for key, text in annotations.items() if key.startswith(_OURS)}
    status = dict(found.get("status") or {})
    status.pop("images", None)
    return {**found, "metadata": meta, "status": status}


def quarantine_object(found: Mapping[str, Any]) -> Answer:
    """The Quarantine object."""
    meta = {key: one for key, one in found["metadata"].items() if key != "managedFields"}
    return {**found, "metadata": meta}


def kernel_lines(node: Answer) -> str:
    """The faults of the node as lines of text."""
    lines = [
        f"{one['first_at']} to {one['last_at']} {one['count']}x {one['code']} "
        f"{one['component']} boot {one['boot_id']}: {one['message']}"
        for one in sorted(node["faults"], key=lambda one: str(one["first_at"]))
    ]
    return "".join(f"{clean(scrubbed(line))}\n" for line in lines)


def versions(
    node: Answer, fleet: Answer | None, cluster_node: Answer | None, client: str
) -> Answer:
    """The versions of everything that took part."""
    info = ((cluster_node or {}).get("status") or {}).get("nodeInfo") or {}
    return {
        "sickbay": client,
        "aggregator": (fleet or {}).get("version", ""),
        "mode": (fleet or {}).get("mode", ""),
        "agent": node["agent_version"],
        "boot": node["boot_id"],
        "traits": node["traits"],
        "kubernetes": {
            key: info[key]
            for key in ("kernelVersion", "osImage", "kubeletVersion", "containerRuntimeVersion")
            if key in info
        },
    }


def history(source: Source, node: str) -> Sequence[Answer]:
    """The node's transitions, the latest first. Raises as the source does."""
    return list(islice(transitions(source, node=node, pages=_MOST // PAGE + 1), _MOST))


def readme(node: str, content: Content, at: dt.datetime, client: str) -> str:
    """The content of the archive."""
    time = at.strftime("%Y-%m-%d %H:%M:%S")
    lines = [
        f"sickbay's knowledge of node {node}, {time} UTC, by sickbay {client}.",
        f"Texts that resemble secrets are {MARK}. Read the files before you pass them on:",
        "they have names of nodes, pods and people.",
        "",
        *(f"{name:<22} {_ABOUT[name]}" for name in content.files),
        *(["", "Missing:"] if content.missing else []),
        *(f"  {clean(one)}" for one in content.missing),
    ]
    return "\n".join(lines) + "\n"


def archive(folder: str, files: Iterable[tuple[str, str]], at: dt.datetime) -> bytes:
    """A .tar.gz with the files in one folder."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in files:
            data = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(at.timestamp()), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
