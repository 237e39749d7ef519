"""The entries of a log of text lines: dmesg, consoles, ``journalctl -o short``, syslog files."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice

from nodeagent.terminal.log_file.entry import Entry, kernel_entry
from nodeagent.terminal.log_file.prefix import Line, Writer, form_of, parse_line

#: Lines from which the form is recognised.
_SAMPLE = 200

_PREFIXED = (Writer.KERNEL, Writer.OTHER)

_BROKEN_UP = (
    *(b"NVRM: The NVIDIA GPU ", b"NVRM: The NVIDIA vGPU ", b"NVRM: API mismatch: the client "),
    b"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
)
_CONTINUED = (
    *(b"NVRM: (PCI ID:", b"NVRM: fallen off the bus", b"NVRM: installed in this", b"NVRM: BAR"),
    *(b"NVRM: open nvidia.ko", b"NVRM: nvidia.ko because", b"NVRM: System Processor (GSP)"),
    *(b"NVRM: has the version ", b"NVRM: the version ", b"NVRM: kernel module and all NVIDIA"),
    *(b"NVRM: have the same version", b"NVRM: Please see the 'Open Linux", b"NVRM: www.nvidia.com"),
    *(b"NVRM: Firmware' sections", b"NVRM: the Linux graphics driver download page"),
    *(b"NVRM: this kernel module has the version ", b"NVRM: make sure that this kernel module"),
    *(b"NVRM: requires use of the NVIDIA", b"NVRM: Software documentation, available"),
)


def text_entries(lines: Iterable[tuple[int, bytes] | Entry]) -> Iterator[Entry]:
    """Each entry with the number of its first line; an entry among them stays as it is.

    Tools print a record of several lines either indented or as several entries. The driver's record
    of three lines, which reports a GPU that has left the bus, is joined again as the kernel had it.
    """
    whole: Entry | None = None
    for entry in _entries(lines):
        if whole is not None and whole.record is not None:
            if entry.text.startswith(_CONTINUED) and (entry.continues or entry.record):
                text = whole.text + rb"\x0a" + entry.text
                whole = replace(whole, text=text, record=replace(whole.record, text=text))
                continue
            yield whole
            whole = None
        if entry.record is not None and entry.text.startswith(_BROKEN_UP):
            whole = entry
        else:
            yield entry
    if whole is not None:
        yield whole


def _entries(lines: Iterable[tuple[int, bytes] | Entry]) -> Iterator[Entry]:
    """Each line as an entry.

    An indented line belongs to the entry before it. A line without any prefix is the kernel's only
    in a file that has none (``dmesg -t``, ``journalctl -o cat``): elsewhere it is the rest of an
    entry, and a user can make the kernel, or a program, log a newline.
    """
    lines = iter(lines)
    sample = list(islice(lines, _SAMPLE))
    texts = [item[1] for item in sample if not isinstance(item, Entry)]
    form = form_of(texts)
    prefixed = any(parse_line(line, form).writer in _PREFIXED for line in texts)
    of_kernel = False
    for item in chain(sample, lines):
        if isinstance(item, Entry):
            of_kernel = False
            yield item
            continue
        number, text = item
        if text[:1] in (b" ", b"\t"):
            yield Entry(number, text.strip(), continues=of_kernel)
            continue
        line = parse_line(text, form)
        prefixed = prefixed or line.writer in _PREFIXED
        if line.writer is Writer.UNSTATED and prefixed:
            yield Entry(number, line.text, continues=of_kernel, known=of_kernel and line.known)
            continue
        of_kernel = line.writer is not Writer.OTHER
        entry = _entry(number, line)
        yield replace(entry, prefix=text.removesuffix(line.text))


def _entry(number: int, line: Line) -> Entry:
    if line.writer is Writer.OTHER:
        return Entry(number, line.text, known=line.known)
    if line.record is not None:
        return Entry(number, line.text, line.record)
    return replace(kernel_entry(number, line.text, line.at), known=line.known)
