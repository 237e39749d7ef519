"""Evidence cut to the bounds of the contract, so that no aggregator has a reason to refuse it.

A name that is too long keeps its beginning and gets a digest of the whole: two long names stay two.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b

from nodeagent.model import Clearing, Evidence, FaultSighting, Gone, Loss, Observation
from sickbay.v1 import limits

#: Replaces an empty name where the contract requires one.
UNNAMED = "unnamed"


def bounded(item: Evidence | Gone) -> tuple[Evidence | Gone | None, str]:
    """The item within the bounds, and which part of it was changed or is wrong (empty if neither).

    An item that cannot be sent at all gives None.
    """
    if isinstance(item, Observation) and _is_fit(item):
        return item, ""  # nearly always, in each run of each check
    match item:
        case Observation():
            fits: Evidence | Gone = replace(
                item,
                check=identifier(item.check),
                component=component_name(item.component),
                reason=cut(item.reason, limits.MAX_NAME),
                message=cut(item.message, limits.MAX_TEXT),
            )
        case FaultSighting():
            return _bounded_fault(item)
        case Clearing():
            fits = replace(
                item,
                component=component_name(item.component),
                how=identifier(item.how),
                code=identifier(item.code) if item.code else "",
            )
        case Loss():
            fits = Loss(
                identifier(item.source),
                min(max(0, item.records), limits.MAX_COUNT),
                cut(item.message, limits.MAX_TEXT),
            )
        case Gone():
            fits = Gone(identifier(item.check), component_name(item.component))
    return (item, "") if fits == item else (fits, _difference(item, fits))


def _bounded_fault(item: FaultSighting) -> tuple[FaultSighting | None, str]:
    if not math.isfinite(item.at) or not 0 <= item.source_seq <= limits.MAX_COUNT:
        place = f"check {cut(item.check, limits.MAX_NAME)}"
        return None, f"{place}: a fault with an invalid time or sequence number was dropped"
    if _is_fit_fault(item):
        return item, ""  # nearly always, and a burst is tens of thousands
    fits = replace(
        item,
        code=identifier(item.code),
        check=identifier(item.check),
        component=component_name(item.component),
        message=cut(item.message, limits.MAX_TEXT),
        source=identifier(item.source),
        details=bounded_details(item.details),
    )
    return (item, "") if fits == item else (fits, _difference(item, fits))


def bounded_details(details: Mapping[str, str]) -> Mapping[str, str]:
    """As many of the details as a message takes, the first ones; the same object if all fit."""
    if len(details) <= limits.MAX_DETAILS:
        for name, value in details.items():
            plain = _is_plain(name, limits.MAX_NAME) and _is_plain(value, limits.MAX_TEXT)
            if not (name and plain):
                break
        else:
            return details
    first = list(details.items())[: limits.MAX_DETAILS]
    return {identifier(name): cut(value, limits.MAX_TEXT) for name, value in first}


def _is_fit(seen: Observation) -> bool:
    try:
        return bool(seen.check) and (
            len(seen.check) <= limits.MAX_NAME
            and len(seen.component) <= limits.MAX_COMPONENT
            and len(seen.reason) <= limits.MAX_NAME
            and len(seen.message) <= limits.MAX_TEXT
            and _all_plain(seen.check, seen.component, seen.reason, seen.message)
        )
    except TypeError:
        return False  # third-party code gave a value that is no text


def _is_fit_fault(seen: FaultSighting) -> bool:
    try:
        return bool(seen.code and seen.check and seen.source) and (
            len(seen.code) <= limits.MAX_NAME
            and len(seen.check) <= limits.MAX_NAME
            and len(seen.source) <= limits.MAX_NAME
            and len(seen.component) <= limits.MAX_COMPONENT
            and len(seen.message) <= limits.MAX_TEXT
            and _all_plain(seen.code, seen.check, seen.source, seen.component, seen.message)
            and _few_and_short(seen.details)
        )
    except TypeError:
        return False


def _all_plain(*texts: str) -> bool:
    """Whether they take as many bytes as characters, and none of those has to be escaped."""
    joined = "".join(texts)
    return joined.isascii() and joined.isprintable()


def _few_and_short(details: Mapping[str, str]) -> bool:
    """Whether a glance shows that they fit: all of them together are short enough for one."""
    return len(details) <= limits.MAX_DETAILS and (
        "" not in details
        and sum(map(len, details)) <= limits.MAX_NAME
        and sum(map(len, details.values())) <= limits.MAX_TEXT
        and _all_plain(*details, *details.values())
    )


def _difference(before: Evidence | Gone, after: Evidence | Gone) -> str:
    """Which field was cut; empty if only the end of a sentence was, or no field."""
    for name in before.__slots__:
        old = getattr(before, name)
        if name == "message" or old == getattr(after, name):
            continue
        most = limits.MAX_COMPONENT if name == "component" else limits.MAX_NAME
        if isinstance(old, str) and 0 < len(_utf8(old)) <= most:
            continue  # escaped
        whose = getattr(after, "check", "") or getattr(after, "source", "") or "unknown"
        return f"check {cut(whose, 64)}: its {name} is outside the contract's bounds and was cut"
    return ""


def identifier(text: str) -> str:
    """``text`` as a name: printable, not empty, at most ``MAX_NAME`` bytes."""
    if text and _is_plain(text, limits.MAX_NAME):
        return text
    if not text:
        return UNNAMED
    text = _text(text)
    odd = {ord(one): _escaped(one) for one in set(text) if not one.isprintable()}
    return _marked(text.translate(odd), limits.MAX_NAME)


def component_name(text: str) -> str:
    """``text`` as the name of a component: any characters, none is one too."""
    return text if _is_plain(text, limits.MAX_COMPONENT) else _marked(text, limits.MAX_COMPONENT)


def cut(text: str, most: int) -> str:
    """The beginning of ``text`` that takes at most ``most`` bytes of UTF-8."""
    if _is_plain(text, most):
        return text
    encoded = _utf8(text)
    return encoded[:most].decode(errors="ignore")


def _marked(text: str, most: int) -> str:
    encoded = _utf8(text)
    if len(encoded) <= most:
        return encoded.decode()
    mark = f"~{blake2b(encoded, digest_size=6).hexdigest()}"
    return cut(encoded.decode(), most - len(mark)) + mark


def _is_plain(text: object, most: int) -> bool:
    """Whether it fits without a closer look, as nearly every text does."""
    return isinstance(text, str) and len(text) <= most and text.isascii() and text.isprintable()


def _text(text: object) -> str:
    return text if isinstance(text, str) else str(text)


def _utf8(text: object) -> bytes:
    """The text in UTF-8. A mount point may have bytes that protobuf refuses: those are escaped."""
    return _text(text).encode("utf-8", "backslashreplace")


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode()
