"""Whether a site's own pattern of kernel lines is safe: fast, and not of a user's making.

A user can choose the name of a process (15 bytes), with which some lines of the kernel begin. A
user can also have the kernel quote his text behind words of its own.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nodeagent.checks.line_pattern import START, LinePattern, members, parsed, starts
from nodeagent.checks.own_lines import LONGEST, QUOTES

#: Steps that one pattern may take with one record: some milliseconds.
_MOST_STEPS = 1 << 15
#: Bytes that must be fixed: one more than the name of a process has.
_FIXED = 16

_IGNORES_CASE = re.compile(rb"(?<!\\)\(\?[a-zA-Z]*i[a-zA-Z]*[:)-]")

#: Beginnings of lines that a user can cause, whatever they quote.
_CAUSED = (
    b"INFO: task ",
    b"Memory cgroup out of memory",
    b"NVRM: API mismatch: the ",
    b"Out of memory: Kill",
    b"UDP: bad checksum",
    b"TCP: request_sock_TCP",
    b"UDPv6: ",
)


def why_slow(pattern: LinePattern) -> str:
    """The reason why a match may take long; empty where it may not."""
    tree = parsed(pattern)
    reason = _unbounded(tree)
    if reason:
        return reason
    steps = _steps(list(tree), ignores_case=_IGNORES_CASE.search(pattern.source) is not None)
    if steps <= _MOST_STEPS:
        return ""
    return f"is slow: a line may take {steps:,} steps; fixed text must follow each repeat"


def why_loose(pattern: LinePattern) -> str:
    """The reason why it matches too many lines, or too few; empty where its beginning is fixed."""
    if _IGNORES_CASE.search(pattern.source):
        return "ignores the case of letters, and lines are found by their first bytes: write [Aa]"
    if any(len(head) < START for head in starts(pattern)):
        return f"does not begin with {START} fixed bytes of the kernel's own words"
    return ""


def why_forged(pattern: LinePattern) -> str:
    """The reason why a user can have such a line printed; empty where he cannot."""
    loose = why_loose(pattern)
    if loose:
        return loose
    for head in starts(pattern, 24):
        for own in (*QUOTES, *_CAUSED):
            if head.startswith(own) or own.startswith(head):
                return f"matches lines that any user can cause ({own.decode()!r})"
    if _fixed(list(parsed(pattern)))[0] < _FIXED:
        return (
            f"has less than {_FIXED} bytes before free text: a process can have such a name, "
            "with which a line of the kernel may begin"
        )
    return ""


def _unbounded(tree: Iterable[tuple[Any, Any]], *, repeated: bool = False) -> str:
    for operation, argument in tree:
        name = str(operation)
        if name in ("GROUPREF", "GROUPREF_EXISTS", "ASSERT", "ASSERT_NOT", "ATOMIC_GROUP"):
            return "has a back-reference, a look-around or an atomic group"
        if name == "BRANCH":
            if repeated:
                return "is slow: it has alternatives within a repeat"
            found = [_unbounded(branch) for branch in argument[1]]
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            least, most, body = argument
            if repeated and most != least:
                return "is slow: it has a repeat within a repeat"
            found = [_unbounded(body, repeated=repeated or most > 1)]
        elif name == "SUBPATTERN":
            found = [_unbounded(argument[3], repeated=repeated)]
        else:
            continue
        for reason in found:
            if reason:
                return reason
    return ""


def _steps(tree: Sequence[tuple[Any, Any]], *, ignores_case: bool) -> int:
    """The most steps of a match: a repeat counts in full where it is not the only possible one.

    The only one: neither the text before it nor the text after it may be its own.
    """
    steps = 1
    items = list(_without_groups(tree))
    for at, (operation, argument) in enumerate(items):
        name = str(operation)
        if name == "BRANCH":
            branches = [list(branch) for branch in argument[1]]
            steps *= sum(_steps(branch, ignores_case=ignores_case) for branch in branches)
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, body = argument
            own, after = list(body), items[at + 1 :]
            begins_once = at == 0 or _is_disjoint(own, items[at - 1 :], ignores_case=ignores_case)
            ends_once = _ends(after) or _is_disjoint(own, after, ignores_case=ignores_case)
            if most != least and after and not (begins_once and ends_once):
                steps *= min(int(most), LONGEST) - least + 1
    return steps


def _without_groups(tree: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    for operation, argument in tree:
        if str(operation) == "SUBPATTERN":
            yield from _without_groups(argument[3])
        else:
            yield operation, argument


def _ends(after: Sequence[tuple[Any, Any]]) -> bool:
    return all(str(operation) == "AT" for operation, _ in after)


def _is_disjoint(
    body: Sequence[tuple[Any, Any]], after: Sequence[tuple[Any, Any]], *, ignores_case: bool
) -> bool:
    """Whether the text after a repeat cannot be the repeat's own."""
    own = members(body[0]) if len(body) == 1 else None
    following = members(after[0])
    if own is None or following is None:
        return False
    if ignores_case:
        return not {*bytes(own).lower()} & {*bytes(following).lower()}
    return not own & following


def _fixed(tree: Sequence[tuple[Any, Any]]) -> tuple[int, bool]:
    """The fewest bytes before free text, and whether there is none in ``tree``."""
    count = 0
    for operation, argument in tree:
        name = str(operation)
        if name == "AT":
            continue
        if name == "SUBPATTERN":
            more, whole = _fixed(argument[3])
        elif name == "BRANCH":
            found = [_fixed(branch) for branch in argument[1]]
            more, whole = min(each for each, _ in found), all(each for _, each in found)
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            one, whole = _fixed(argument[2])
            more = one * argument[0]
        else:
            own = members((operation, argument))
            whole = own is not None and 32 not in own
            more = int(own is not None and (whole or len(own) == 1))
            whole = more == 1
        count += more
        if not whole:
            return count, False
    return count, True
