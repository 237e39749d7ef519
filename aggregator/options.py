"""The options of `sickbay` that lead to this cluster and to no other. Text for people to copy."""

import shlex
from pathlib import Path

#: Where sickbay's own objects are, unless somebody says otherwise.
NAMESPACE = "sickbay"


def options_for(
    *,
    local: Path | None = None,
    kubeconfig: str = "",
    context: str = "",
    namespace: str = NAMESPACE,
) -> str:
    """What a command needs besides; begins with a space. Empty: nothing. ``local`` goes alone."""
    if local is not None:
        return f" --local {shlex.quote(str(local))}"
    said = namespace if namespace != NAMESPACE else ""
    given = {"kubeconfig": kubeconfig, "context": context, "namespace": said}
    return "".join(f" --{name} {shlex.quote(value)}" for name, value in given.items() if value)
