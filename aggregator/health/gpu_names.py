"""The name of a GPU for people: its index and PCI address, from the agent's inventory. Pure.

Evidence names a GPU by its UUID, which no slot and no `nvidia-smi -i` shows. The index is NVML's at
the agent's last reading; it changes when a GPU is gone, so an absent GPU has its address alone.
"""

import re
from collections.abc import Mapping

from aggregator.health.node import NodeHealth

_INVENTORY = "gpu-inventory"
_UUID = "GPU-"
_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}"
#: "GPU 3 at 0000:1b:00" where the agent knows the index, else "NVIDIA H100 at 0000:1b:00".
_PLACE = re.compile(rf"(?:\bGPU (\d{{1,4}}) )?at ({_ADDRESS})(?![0-9a-fA-F])")
_SLOT = re.compile(rf"(?:pci:)?({_ADDRESS})")
_COMPONENT = re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_NAME = re.compile(rf"\bGPU (?:\d{{1,4}} )?at {_ADDRESS}(?![0-9a-fA-F])")


def gpu_name(
    health: NodeHealth | None, component: str, details: Mapping[str, str] | None = None
) -> str:
    """The GPU's index and PCI address ("GPU 3 at 0000:1b:00"), or its address alone; empty where
    the component is no GPU, or neither is known.

    ``details`` are those of a fault: the driver's line has the address.
    """
    if not component or health is None:
        return ""
    found = health.components.get((_INVENTORY, component))
    place = _PLACE.search(found.message) if found is not None else None
    if place is not None and place[1] is not None:
        return f"GPU {place[1]} at {place[2].lower()}"
    slot = place[2] if place is not None else _slot(component, details or {})
    return f"GPU at {slot.lower()}" if slot else ""


def _slot(component: str, details: Mapping[str, str]) -> str:
    """The address that the component is named by, or that its fault's line has."""
    named = component if component.startswith("pci:") else ""
    if not named and component.startswith(_UUID):
        named = details.get("pci", "")
    match = _SLOT.fullmatch(named)
    return match[1] if match is not None else ""


def name_gpus(text: str, health: NodeHealth | None) -> str:
    """The text with each GPU by index and address where it has the UUID, as far as they are known.

    This is for people: what programs compare keeps the UUID.
    """
    if _UUID not in text or health is None:
        return text
    return _COMPONENT.sub(lambda found: _known_name(health, found[0]) or found[0], text)


def _known_name(health: NodeHealth, uuid: str) -> str:
    faults = (one.details for one in health.faults.values() if one.component == uuid)
    details = next((one for one in faults if "pci" in one), None)
    return gpu_name(health, uuid, details)


def hide_gpus(text: str) -> str:
    """The text with "a GPU" for each GPU, so that the texts of several nodes are equal."""
    return _NAME.sub("a GPU", _COMPONENT.sub("a GPU", text)) if "GPU" in text else text
