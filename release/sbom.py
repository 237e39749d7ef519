"""The software bill of materials of one program, as CycloneDX 1.6 in JSON.

    python -m release.sbom PROGRAM REQUIREMENTS REPORT

REQUIREMENTS are the hashed requirements, which say who requires what; REPORT is what
`pip install --report` wrote, which says what was installed, and from which file. The same input
gives the same bytes: no time and no random number is in it.

Format: https://cyclonedx.org/docs/1.6/json/. The standard library alone: the build stage of an
image runs it.
"""

import json
import sys
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from release.requirements_file import Pin, RequirementsError, canonical, parse

_ROOT = Path(__file__).parents[1]
_LICENCE = "Apache-2.0"
_DISTRIBUTION = "sickbay"
#: A free text that is longer is the licence itself, and not its name (characters).
_LONGEST_NAME = 100
_CLASSIFIER = "License :: OSI Approved :: "


class SbomError(Exception):
    """What was installed is not what was locked; the message names the package."""


def bill(
    program: str, version: str, pins: Sequence[Pin], report: Mapping[str, Any]
) -> dict[str, Any]:
    """The bill of ``program`` (sickbay-agent, say). Raises SbomError."""
    locked = {pin.name: pin for pin in pins}
    installed = {canonical(one["metadata"]["name"]): one for one in report["install"]}
    components = [
        _component(_checked(name, item, locked), item) for name, item in sorted(installed.items())
    ]
    root = {
        "type": "application",
        "bom-ref": program,
        "name": program,
        "version": version,
        "purl": f"pkg:pypi/{_DISTRIBUTION}@{version}",
        "licenses": [{"license": {"id": _LICENCE}}],
    }
    refs = {name: _purl(locked[name]) for name in installed}
    parents = {name: locked[name].parents for name in installed}
    edges = {program: _children(_DISTRIBUTION, refs, parents)}
    edges |= {refs[name]: _children(name, refs, parents) for name in installed}
    content = {
        "metadata": {"component": root},
        "components": components,
        "dependencies": [
            {"ref": ref, "dependsOn": children} for ref, children in sorted(edges.items())
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(content, sort_keys=True))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        **content,
    }


def _checked(name: str, item: Mapping[str, Any], locked: Mapping[str, Pin]) -> Pin:
    version = item["metadata"]["version"]
    pin = locked.get(name)
    if pin is None or pin.version != version:
        wanted = "not locked" if pin is None else f"locked as {pin.version}"
        raise SbomError(f"{name} {version} was installed and is {wanted}")
    if _sha256(item) not in pin.hashes:
        raise SbomError(f"{name} {version} was installed from a file whose hash is not locked")
    return pin


def _sha256(item: Mapping[str, Any]) -> str:
    return str(item["download_info"]["archive_info"]["hashes"]["sha256"])


def _component(pin: Pin, item: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        "type": "library",
        "bom-ref": _purl(pin),
        "name": pin.name,
        "version": pin.version,
        "purl": _purl(pin),
        "hashes": [{"alg": "SHA-256", "content": _sha256(item)}],
    }
    licence = _licence(item["metadata"])
    return found | ({"licenses": [licence]} if licence else {})


def _licence(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    if expression := metadata.get("license_expression"):
        return {"expression": expression}
    name = str(metadata.get("license") or "").strip()
    if name and len(name) <= _LONGEST_NAME and "\n" not in name:
        return {"license": {"name": name}}
    for classifier in metadata.get("classifier", ()):
        if classifier.startswith(_CLASSIFIER):
            return {"license": {"name": classifier.removeprefix(_CLASSIFIER)}}
    return None


def _children(
    parent: str, refs: Mapping[str, str], parents: Mapping[str, frozenset[str]]
) -> list[str]:
    return sorted(refs[name] for name in refs if parent in parents[name])


def _purl(pin: Pin) -> str:
    return f"pkg:pypi/{pin.name}@{pin.version}"


def main(arguments: Sequence[str]) -> int:
    """Print the bill; returns the exit code."""
    if len(arguments) != 3:
        print("usage: python -m release.sbom PROGRAM REQUIREMENTS REPORT", file=sys.stderr)
        return 2
    program, requirements, report = arguments
    try:
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        pins = parse(Path(requirements).read_text("utf-8").splitlines())
        made = bill(program, project["version"], pins, json.loads(Path(report).read_text("utf-8")))
    except (OSError, ValueError, RequirementsError, SbomError) as error:
        print(f"sbom: {error}", file=sys.stderr)
        return 2
    print(json.dumps(made, indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
