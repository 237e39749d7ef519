"""The demo's output in README.md: an excerpt of a run, in a block that `<!-- demo -->` begins.

tests/e2e/test_demo.py compares its shape with that of a run; `make screenshots` renews it.
"""

import re

#: This scene shows checks of the machine at hand.
_LEFT_OUT = "what this machine's own agent reports"
_LONGEST = 110
_BLOCK = re.compile(r"(<!-- demo -->\n```\n)(.*?)(```\n<!-- /demo -->)", re.DOTALL)
_EVENT = re.compile(r"\d\d:\d\d:\d\d  (>> )?")
#: Texts that differ from run to run, and their placeholder in a shape.
_VARYING = (
    (r"\d\d:\d\d:\d\d", "TIME"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\d+ ms", "N ms"),
    (r"at step \d+", "at step N"),
    (r"on GPU \d+ at \S+", "on GPU"),
    (r"on \d+ of \d+ nodes", "on N nodes"),
    (r"(sim)-\d+(: \w+ held by)", r"\1\2"),
    (r"and \d+ more", "and N more"),
)


def excerpt(output: str) -> str:
    """The address and the events of the scenes, a blank line before each scene."""
    lines: list[str] = []
    shown = True
    for line in output.splitlines():
        event = _EVENT.match(line)
        if event and event[1]:
            shown = _LEFT_OUT not in line
            lines += [""] if shown else []
        if line.startswith("  the page") or (event and shown):
            lines.append(line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…")
    # The demo takes another port where the usual one is taken, as in the tests.
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8080", "\n".join(lines)) + "\n"


def shape(text: str) -> list[list[str]]:
    """The different lines of each scene, in order of the text, without what runs differ in."""
    for pattern, word in _VARYING:
        text = re.sub(pattern, word, text)
    return [
        sorted({line.rstrip("…")[:70] for line in scene.splitlines()})
        for scene in text.split("\n\n")
    ]


def shown(readme: str) -> str:
    """The excerpt that the README has. Raises ValueError where it has no place for one."""
    found = _BLOCK.search(readme)
    if found is None:
        raise ValueError("README.md has no place for the demo's output: <!-- demo -->")
    return found[2]


def put(readme: str, text: str) -> str:
    """The README with this excerpt. Raises as `shown`."""
    shown(readme)
    return _BLOCK.sub(lambda found: found[1] + text + found[3], readme)
