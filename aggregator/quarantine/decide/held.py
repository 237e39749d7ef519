"""Why a limit holds a quarantine or an operation now. Pure."""

from dataclasses import dataclass

from aggregator.rfc3339 import span

#: The limits that are a time, in seconds; the others are a count, or end with "percent".
_TIMES = frozenset({"absent_node_after", "after_upgrade", "cooldown", "fabric_hold", "window"})


@dataclass(frozen=True, slots=True)
class Held:
    """Why not now: the limit by its name in the configuration, its value, and a sentence.

    ``cause``: the id of the common cause, where that is why. ``spare``: how many admissions a
    rate counts above those that it allows. ``since`` (wall clock seconds): when a node began to be
    held by it.
    """

    limit: str
    value: str
    reason: str
    cause: str = ""
    spare: int = 0
    since: float = 0.0

    @property
    def text(self) -> str:
        """All of it, for people."""
        return f"held by {self.limit} = {self.value}: {self.reason}"


def limit_text(section: object, key: str) -> str:
    """The value of a section's limit, as people see it."""
    value = getattr(section, key)
    if key.endswith("percent"):
        return f"{value:g}%"
    return span(value) if key in _TIMES else str(value)


def held_by(
    section: object,
    key: str,
    reason: str,
    *,
    under: str = "limits",
    cause: str = "",
    spare: int = 0,
) -> Held:
    """The hold by the limit of this name in the section ``under``."""
    return Held(f"{under}.{key}", limit_text(section, key), reason, cause, spare)
