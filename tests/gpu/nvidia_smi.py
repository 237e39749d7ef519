"""NVIDIA's own answers about the same GPUs: the XML of ``nvidia-smi -q -x``."""

import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from nodeagent.sources.gpus import normalise

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_ABSENT = ("N/A", "[N/A]", "Not Supported", "Unknown Error", "")
_DEPRECATED = "Requested functionality has been deprecated"


class SmiGpu:
    """One GPU's part of the answer. A path is in ElementTree's words: ``.//uuid``."""

    def __init__(self, element: ET.Element) -> None:
        self._element = element

    def text(self, path: str) -> str | None:
        """The text of the first element there, or None for "N/A" and the like.

        Raises LookupError when there is no such element, which is another version's XML.
        """
        found = self._element.find(path)
        if found is None:
            raise LookupError(f"nvidia-smi -q -x has no {path}")
        text = (found.text or "").strip()
        return None if text in _ABSENT or text == _DEPRECATED else text

    def number(self, path: str) -> float | None:
        """The number at the beginning of that text: "16x", "81 C" and "2560 bank(s)" have one."""
        text = self.text(path)
        match = _NUMBER.match(text) if text is not None else None
        return float(match[0]) if match else None

    def total(self, path: str) -> float | None:
        """The sum of the numbers of all elements there, or None where no element has one."""
        texts = [(each.text or "").strip() for each in self._element.findall(path)]
        numbers = [float(match[0]) for text in texts if (match := _NUMBER.match(text))]
        return sum(numbers) if numbers else None

    def choice(self, path: str, **values: object) -> object:
        """The value for the text, spaces written as underscores; the text itself for another."""
        text = self.text(path)
        return None if text is None else values.get(text.replace(" ", "_"), text)

    @property
    def uuid(self) -> str:
        return self.text("uuid") or ""

    @property
    def pci(self) -> str | None:
        return normalise(self.text("pci/pci_bus_id") or "")


class Smi:
    """The whole answer."""

    def __init__(self, xml: str) -> None:
        self._root = ET.fromstring(xml)
        self.driver = self._root.findtext("driver_version", "")
        self.gpus: Sequence[SmiGpu] = [SmiGpu(each) for each in self._root.findall("gpu")]

    def gpu(self, uuid: str) -> SmiGpu:
        [found] = [gpu for gpu in self.gpus if gpu.uuid == uuid]
        return found


def ask() -> Smi:
    """Run nvidia-smi."""
    return Smi(_run("-q", "-x"))


def active_links(uuid: str) -> int:
    """How many NVLinks of this GPU have a speed, by ``nvidia-smi nvlink --status``."""
    text = _run("nvlink", "--status", "-i", uuid, may_fail=True)
    return len(re.findall(r"Link \d+: [\d.]+ GB/s", text))


def _run(*arguments: str, may_fail: bool = False) -> str:
    done = subprocess.run(
        ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=60, check=not may_fail
    )
    return done.stdout
