"""The words of Kubernetes in a text for people of another cluster."""

import re
from html import unescape

#: Kinds of events, keys and labels are the same on each cluster, and so is `cordon`, alone, the
#: name of an action and a mode of sickbay.
_IDENTIFIERS = re.compile(r"\bquarantine\.(un)?cordoned\b|\b[a-z]+(_[a-z]+)+\b|[a-z.]+\.io/")
_NEVER = re.compile(
    r"\b(pods?|kubectl|kubernetes|evict\w*|taint\w*|daemonsets?|configmaps?|namespaces?"
    r"|annotat\w*|poddisruptionbudgets?|node objects?)\b",
    re.IGNORECASE,
)
_CORDON = re.compile(r"\b(uncordon\w*|cordon(ed|s|ing))\b", re.IGNORECASE)


def found_in(text: str, *, cordons: bool = False) -> list[str]:
    """The words of Kubernetes in it. ``cordons``: the site's own command has that name."""
    text = _IDENTIFIERS.sub("", text)
    found = [one[0] for one in _NEVER.finditer(text)]
    return found if cordons else [*found, *(one[0] for one in _CORDON.finditer(text))]


def shown(page: str) -> str:
    """A page without its script, and without the attributes that no person reads."""
    page = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return unescape(re.sub(r' (class|href|id|data-(?!drain)[a-z]+)="[^"]*"', "", page))
