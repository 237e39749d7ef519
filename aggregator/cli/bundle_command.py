"""`sickbay bundle NODE`: reads all that is known of the node, and writes the archive."""

import argparse
import datetime as dt
import errno
import os
from pathlib import Path
from typing import Any

from aggregator.cli import bundle as parts
from aggregator.cli.errors import CommandFailed, UsageError
from aggregator.cli.read_commands import node_answer
from aggregator.cli.source import open_source
from aggregator.cli.write_commands import report
from aggregator.version import VERSION

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def bundle(options: argparse.Namespace) -> None:
    """A part that can't be read is named in the archive, and keeps no other part out of it."""
    at, client = dt.datetime.now(dt.UTC), VERSION
    content = parts.Content()
    with open_source(options) as source:
        answer = node_answer(source, options.name)
        content.add("node.json", answer)
        fleet = None
        try:
            fleet = source.get("fleet")
            content.add("history.json", parts.history(source, options.name))
        except CommandFailed as error:
            content.missing.append(f"history.json: {error}")
        objects: dict[str, Any] = {}
        missing = ["Kubernetes' objects: with --url no cluster is read"]
        reader = source.reader()
        if reader is not None:
            objects, missing = reader.objects_about(options.name)
    content.files["kernel-lines.txt"] = parts.kernel_lines(answer)
    content.add("versions.json", parts.versions(answer, fleet, objects.get("node"), client))
    if "quarantine" in objects:
        content.add("quarantine.json", parts.quarantine_object(objects["quarantine"]))
    if "node" in objects:
        content.add("kubernetes-node.json", parts.node_object(objects["node"]))
    if "operations" in objects:
        content.add("operations.json", objects["operations"].get("items") or [])
    if "events" in objects:
        content.add("events.json", objects["events"].get("items") or [])
    content.missing += missing
    _write_bundle(options, content, at, parts.readme(options.name, content, at, client))


def _write_bundle(
    options: argparse.Namespace, content: parts.Content, at: dt.datetime, readme: str
) -> None:
    folder = f"sickbay-{options.name}"
    file = options.file or Path(f"{folder}-{at.strftime('%Y%m%dT%H%M%SZ')}.tar.gz")
    packed = parts.archive(folder, [("README.txt", readme), *content.files.items()], at)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(packed)
        except OSError:
            file.unlink()  # a part of an archive would look like one
            raise
    except FileExistsError as error:
        raise UsageError(f"--file: {file} is there already; expected a new file") from error
    except OSError as error:
        kind = CommandFailed if error.errno in _OF_THE_DISK else UsageError
        raise kind(f"--file: {file} can't be written: {error.strerror}") from error
    missing = "".join(f"\n  missing: {one}" for one in content.missing)
    report(options, f"{file}: {len(content.files) + 1} files, {len(packed)} bytes{missing}")
