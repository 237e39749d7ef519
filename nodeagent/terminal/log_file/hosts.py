r"""The name of a machine before each line, as tools write it that read the logs of many.

- ``node17: [  123.4] text``: pdsh, clush, ``parallel --tag``; `` 3: text``: ``srun --label``;
- ``logs/node17:31:text``, ``/var/log/kern.log:text``: ``grep -n``, ``-H``; `` 31 text``: less;
- ``[1,3]<stdout>: text``: mpirun;
- ``2026-04-22T21:23:52Z {host="node17"} text``: logcli;
- ``[pod/NAME/CONTAINER] text``: ``kubectl logs --prefix``; ``NAME CONTAINER text``: stern;
- ``[node17] text``; ``2026-04-22T21:23:52.1Z stdout F text``, a container's log that has no name;
- ``node17 | text``: docker compose and its like;
- ``node17 | CHANGED | rc=0 >>`` before the lines of a machine: ansible; ``[1] 21:23:52 [SUCCESS]
  node17``: pssh; ``node17:`` before indented lines: salt;
- ``ok: [node17] => {...}``: ansible-playbook, in JSON or YAML;
- the name between two lines of hyphens: dshbak, ``clush -b``; ``== node17 ==``, ``==> FILE <==``;
- ``> text``, ``| text``, ``+text``: a quotation, a difference;
- ``2026-04-22T21:23:52+00:00 STREAM {...}``: ``aws logs tail``; with a tag instead of the stream:
  fluentd;
- ``NAMESPACE/POD[CONTAINER]: text``: kail;
- ``node17 [  123.4] text``, ``node17,[  123.4] text``: a loop;
- ``2026-04-22T21:23:52Z 2026-04-22T21:23:50+0000 node17 kernel: text``: ``kubectl logs
  --timestamps`` of journalctl's lines, ts(1).

One may be within another: pdsh runs ``kubectl logs --prefix --timestamps``.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from nodeagent.terminal.log_file.ansible import TASK, of_yaml, result_lines
from nodeagent.terminal.log_file.journal_fields import is_json
from nodeagent.terminal.log_file.prefix import Writer, parse_line

#: Lines from which the form is recognised.
_SAMPLE = 200
#: Lines of nodes that are remembered: those that a reader of entries may hold back.
_HELD = 4096

_PREFIXES = (
    re.compile(rb"\[pod/([^\s/\]]{1,253})/[^\s\]]{1,253}\] "),
    re.compile(rb"\[([A-Za-z][\w.-]{0,252})\] "),
    re.compile(rb"()\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d) std(?:out|err) [FP] "),
    re.compile(
        rb"(?!kernel:)([A-Za-z0-9][\w.-]{0,252}(?:\[[\d,-]{1,100}\][\w.-]{0,60})?)[:>] {0,2}"
    ),
    re.compile(rb"\[[\w.@-]{0,200},(\d{1,6})\]<std(?:out|err)>: ?"),
    re.compile(rb" {0,6}(\d{1,6}|srun|slurmstepd): ?"),
    re.compile(rb"([\w./-]{1,252}):\d{1,9}:"),
    re.compile(rb"([\w.-]{0,100}/[\w./-]{1,252}):"),
    re.compile(
        rb"() {0,8}\d{1,7} "
        rb"(?=\[ *\d|\[[A-Z][a-z]{2} |<\d|\d{4}-\d\d-\d\dT|\d,\d|[A-Z][a-z]{2} [ \d]\d )"
    ),
    re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d) ()\{[^{}]{0,2000}\} "),
    re.compile(rb"([A-Za-z0-9][\w.@-]{0,252}) *\| ?"),
    re.compile(rb"([A-Za-z0-9][\w.-]{0,252})\t"),
    re.compile(
        rb"(?:[A-Za-z0-9][\w.-]{0,252} )?([A-Za-z0-9][\w.-]{0,252}) [A-Za-z0-9][\w.-]{0,252} "
        rb"(?=\[ *\d{1,10}\.\d|\[[A-Z][a-z]{2} |<\d|\d{4}-\d\d-\d\dT|[A-Z][a-z]{2} [ \d]\d )"
    ),
    re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d) ([\w./-]{1,252}) (?=\{)"),
    re.compile(
        rb"()\d{4}-\d\d-\d\d[T ][\d:.]{8,20} ?(?:Z|[+-]\d\d:?\d\d)[ \t]"
        rb"[\w./-]{1,252}(?:: |\t)(?=\{\")"
    ),
    re.compile(rb"[\w.-]{1,253}/([\w.-]{1,253})\[[\w.-]{1,253}\]: "),
    re.compile(
        rb"(?!kernel)([A-Za-z0-9][\w.-]{0,252})(?: +|[,;] ?)"
        rb"(?=\[ *\d{1,10}\.\d|\[[A-Z][a-z]{2} |[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
        rb"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)"
    ),
    # The time, and a cloud's stream, of a tool that read lines which have their own.
    re.compile(
        rb"(?:\d{4}-\d\d-\d\d[T ][\d:.]{8,20} ?(?:Z|[+-]\d\d:?\d\d)"
        rb"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) ([\w./-]{1,252}(?= )|) ?"
        rb"(?=\[ *\d{1,10}\.\d|<\d|\d,\d|\[[A-Z][a-z]{2} |[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
        rb"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)"
    ),
    re.compile(rb"()(?:(?:(?:>|&gt;) ?){1,5}|[-*|] |\+)(?=\S)"),
)
#: The most prefixes within one another.
_NESTED = 3
#: Stern's own lines about the pods that it begins and ends to read.
_OF_STERN = re.compile(rb"[+-] (?:[\w.-]{1,253} )?[\w.-]{1,253} \xe2\x80\xba [\w.-]{1,253}$")
_BELOW = re.compile(rb"([A-Za-z0-9][\w.-]{0,252}):")
_SECTION = re.compile(
    rb"([A-Za-z0-9][\w.-]{0,252}) \| [A-Z]{4,20}!?(?: \| rc=-?\d{1,5})? (?:>>|=>)"
    rb"|\[\d{1,6}\] \d\d:\d\d:\d\d \[[A-Z]{4,10}\] ([A-Za-z0-9][\w.-]{0,252})$"
    rb"|={2,8}>? ([A-Za-z0-9/][\w./-]{0,252}) <?={2,8}$"
)
_ONE_LINE = re.compile(
    rb"([A-Za-z0-9][\w.-]{0,252}) \| [A-Z]{4,20}!? \| rc=-?\d{1,5} \| \(std(?:out|err)\) (.*)"
)
#: A label of Loki's that journald's own field gives.
_OF_KERNEL = b'transport="kernel"'
_HYPHENS = re.compile(rb"-{8,80}")

Numbered = tuple[int, bytes]


class Hosts:
    """Takes the names off, and knows of each line's node afterwards."""

    def __init__(self) -> None:
        self._nodes: dict[int, str] = {}

    def of(self, number: int) -> str:
        """The node of a line that was given; empty where the form names none."""
        return self._nodes.get(number, "")

    def without(self, lines: Iterable[Numbered]) -> Iterator[Numbered]:
        """The lines without the names of machines, where each of them begins with one."""
        lines = (each for each in lines if not _OF_STERN.fullmatch(each[1]))
        sample = list(islice(lines, _SAMPLE))
        every = chain(sample, lines)
        prefixes = _prefixes_of([text for _, text in sample])
        if not prefixes:
            yield from self._of_sections(every)
            return
        for number, text in every:
            rest, node = text, b""
            for prefix in prefixes:
                named = prefix.match(rest)
                if named is not None:
                    rest, node = rest[named.end() :], node or named[1]
            if rest != text:
                self._remember(number, node)
            if rest.strip():
                yield number, rest

    def _of_sections(self, lines: Iterator[Numbered]) -> Iterator[Numbered]:
        node = held = b""
        indent = is_yaml = False
        for number, line in lines:
            is_yaml = is_yaml and line.startswith(b" ")
            text = of_yaml(line) if is_yaml else line
            task = TASK.match(text)
            section = _SECTION.match(text)
            if task is not None:
                node, is_yaml = task[1], not task[2]
                self._remember(number, node)
                for each in () if is_yaml else result_lines(task[2], lines):
                    yield number, each
            elif is_yaml:
                self._remember(number, node)
                yield number, text
            elif (one := _ONE_LINE.match(text)) is not None:
                self._remember(number, one[1])
                for each in one[2].split(rb"\n"):
                    yield number, each
            elif section is not None:
                node = section[1] or section[2] or section[3]
            elif _BELOW.fullmatch(text) and text != b"kernel:":
                node, indent = text[:-1], True
            elif _HYPHENS.fullmatch(text):
                held = text if not held else b""
            elif held and re.fullmatch(rb"[\w.,\[\]-]{1,255}", text):
                node = text
            else:
                held = b""
                if node:
                    self._remember(number, node)
                yield number, text.removeprefix(b"    ") if indent else text

    def _remember(self, number: int, node: bytes) -> None:
        self._nodes[number] = node.decode("ascii", "backslashreplace")
        if len(self._nodes) > _HELD:
            del self._nodes[next(iter(self._nodes))]


def _prefixes_of(sample: list[bytes], depth: int = _NESTED) -> list[re.Pattern[bytes]]:
    """The prefixes that every line has, and without which one of them is the kernel's."""
    kernels = (each for each in map(parse_line, sample) if each.writer is Writer.KERNEL)
    if not sample or any(not is_json(each.text) for each in kernels):
        return []
    rests: dict[re.Pattern[bytes], list[bytes]] = {}
    for prefix in _PREFIXES:
        named = [each for line in sample if (each := prefix.match(line)) is not None]
        if len(named) == len(sample):
            rests[prefix] = [line[each.end() :] for line, each in zip(sample, named, strict=True)]
            if any(map(_is_kernels, rests[prefix])) or any(_OF_KERNEL in each[0] for each in named):
                return [prefix]
    for prefix, within in rests.items():
        more = _prefixes_of(within, depth - 1) if depth > 1 else []
        if more:
            return [prefix, *more]
    return []


def _is_kernels(line: bytes) -> bool:
    """Of lines without a stamp the driver's are known, as of ``dmesg -t | grep NVRM``."""
    is_drivers = line.startswith(b"NVRM: ")
    return is_drivers or is_json(line) or parse_line(line.strip(b'"')).writer is Writer.KERNEL
