"""The object of a site's template for one order, and what its state means. Pure.

Placeholders are filled in value by value, after the template was read as YAML: a value that is
filled in stays within its own text, whatever is in it, and is not looked through for placeholders.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from aggregator.config.external import OutcomeSection
from aggregator.config.field_path import parse_field_path, read_condition, read_field
from aggregator.configfile.values import PLACE
from aggregator.quarantine.decide.own_pods import OPERATION
from aggregator.quarantine.repair.protocol import RepairOrder
from aggregator.runtime.text import truncate, visible

#: Characters of a value: a person may have pasted a log as the reason.
_LONGEST = 4000
#: A DNS label: many kinds take no longer name, as they name a label's value after it.
_LONGEST_LABEL = 63
_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
#: RFC 1123's subdomain: the names of most objects.
_LONGEST_NAME = 253
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_MOST_TEXT = 300


class UnusableNameError(Exception):
    """The filled-in name can't be an object's; the text states which, and what can be."""


def values_of(order: RepairOrder) -> dict[str, str]:
    """The values of placeholders. ``gpus``: UUIDs with commas."""
    values = {**order.values(), "gpus": ",".join(order.gpus)}
    return {name: truncate(text.replace("\0", ""), _LONGEST) for name, text in values.items()}


def fill(value: Any, values: Mapping[str, str]) -> Any:
    """The value with its placeholders filled in, also in what it contains."""
    if isinstance(value, str):
        return PLACE.sub(lambda place: values.get(place[1], place[0]), value)
    if isinstance(value, Mapping):
        return {key: fill(inner, values) for key, inner in value.items()}
    if isinstance(value, list):
        return [fill(inner, values) for inner in value]
    return value


def object_name(template: Mapping[str, Any], order: RepairOrder) -> str:
    """The name of the order's object: the same for each process. Raises UnusableNameError.

    Without a name in the template it follows from the operation.
    """
    given = (template.get("metadata") or {}).get("name")
    if given is None:
        name = f"sickbay-{order.operation}"
        if len(name) <= _LONGEST_LABEL and _LABEL.fullmatch(name):
            return name
        return f"sickbay-{hashlib.sha256(order.operation.encode()).hexdigest()[:40]}"
    name = str(fill(given, values_of(order)))
    if len(name) > _LONGEST_NAME or _NAME.fullmatch(name) is None:
        raise UnusableNameError(
            f"the template's name is {visible(name, 100)!r}, which is no object's name; expected"
            f" small letters, digits, '-' and '.', at most {_LONGEST_NAME}"
        )
    return name


def manifest(
    template: Mapping[str, Any], order: RepairOrder, *, name: str, owner: Mapping[str, Any]
) -> dict[str, Any]:
    """The object to create. With ``owner`` gone, the cluster's garbage collector deletes it."""
    filled = fill(template, values_of(order))
    metadata = dict(filled.get("metadata") or {})
    annotations = {**(metadata.get("annotations") or {}), OPERATION: order.operation}
    mine = {"name": name, "annotations": annotations, "ownerReferences": [dict(owner)]}
    return {**filled, "metadata": {**metadata, **mine}}


def shows(outcome: OutcomeSection | None, content: Mapping[str, Any]) -> str | None:
    """The sign of the outcome on the object, in words; None: it does not show it."""
    if outcome is None:
        return None
    if outcome.condition:
        condition = read_condition(content, outcome.condition, outcome.status)
        if condition is None:
            return None
        words = [str(condition.get(name) or "") for name in ("reason", "message")]
        text = visible(": ".join(word for word in words if word), _MOST_TEXT)
        return f"{outcome.condition} is {outcome.status}" + (f": {text}" if text else "")
    if _as_text(read_field(content, parse_field_path(outcome.field))) != outcome.equals:
        return None
    return f"{outcome.field} is {outcome.equals}"


def has_begun(content: Mapping[str, Any]) -> bool:
    """Whether another controller has written to the object: it may be at work."""
    metadata = content.get("metadata") or {}
    return bool(content.get("status") or metadata.get("finalizers"))


def _as_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None
