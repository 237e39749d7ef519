"""The options of `sickbay` that select this cluster and no other. Text for people to copy."""

import shlex

#: The namespace of sickbay's own objects, unless a setting names another.
NAMESPACE = "sickbay"


def target_flags(
    *,
    local: str | None = None,
    kubeconfig: str = "",
    context: str = "",
    namespace: str = NAMESPACE,
) -> str:
    """The further options that a command needs; begins with a space, or is empty without any.
    ``local``, a file or a database's URL, goes alone.
    """
    if local is not None:
        return f" --local {shlex.quote(local)}"
    other = namespace if namespace != NAMESPACE else ""
    given = {"kubeconfig": kubeconfig, "context": context, "namespace": other}
    return "".join(f" --{name} {shlex.quote(value)}" for name, value in given.items() if value)


def reading_flags(how: str) -> str:
    """Those of ``target_flags`` that a command takes which only reads: it has no --local."""
    return "" if how.startswith(" --local ") else how
