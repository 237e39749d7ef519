r"""The prefix of one line of a text log: which program wrote the line, and when.

The forms, and where each is documented:

- ``/dev/kmsg``: ``4,1000,81000000,-;text`` (Documentation/ABI/testing/dev-kmsg);
- the kernel's consoles and dmesg(1): ``<4>``, ``kern  :warn  : ``, ``[   81.042000] ``, ``[ T12] ``
  or ``[    C0] `` (printk.c, CONFIG_PRINTK_CALLER), dmesg's ctime, reltime, delta and iso times;
- journalctl(1) ``-o short*`` and ``with-unit``, and syslog files: a date, a host, ``kernel: ``;
- RFC 3164 and RFC 5424 with their priority; its facility is 0 for the kernel's messages;
- ``talosctl dmesg``: ``10.5.0.3: kern:    info: [2022-07-28T11:49:42.489473063Z]: text``.

Another program's line can contain any of these later in its text, so each is only accepted where
the form has it: "host app[1]: kernel: NVRM: ..." is the line of an "app".
"""

import contextlib
import re
from collections.abc import Sequence
from enum import Enum

from nodeagent.dataclass import dataclass
from nodeagent.sources.kmsg import Record, parse
from sickbay.json_text import read_json


class Writer(Enum):
    """The program that a line's prefix names.

    ``UNSTATED``: the line has no prefix. ``CLAIMED``: its only prefix is "kernel: ", with which any
    text may begin.
    """

    KERNEL = "kernel"
    OTHER = "other"
    CLAIMED = "claimed"
    UNSTATED = "unstated"


@dataclass(frozen=True, slots=True)
class Line:
    """``at``: seconds since the boot, or -1. ``record``: set for a raw record of ``/dev/kmsg``."""

    writer: Writer
    text: bytes
    at: float = -1.0
    record: Record | None = None
    known: bool = True


_LEVELS = rb"(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)"
_ZONE = rb"(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?"
_CLOCK = rb"\d\d:\d\d:\d\d"
_ISO = rb"\d{4}-\d\d-\d\d[T ]" + _CLOCK + rb"(?:[.,]\d{1,9})?"

_RAW = re.compile(rb"\d{1,9},\d{1,20},\d{1,20},[^;]*;")
# Netconsole's release, before a record.
_RELEASE = re.compile(rb"\d{1,2}\.\d[\w.+~-]{0,100},(?=\d{1,9},\d{1,20},\d{1,20},)")
_PRIORITY = re.compile(rb"<(\d{1,3})>")
_RFC5424 = re.compile(
    rb"(?:\d{1,6} )?(?:<(\d{1,3})>1|1(?= \d{4}-\d\d-\d\dT)) \S{1,64} \S{1,255} (\S{1,48}) "
    rb"(\S{1,128}) \S{1,32} "
    rb"(?:-|(?:\[(?:[^\]\\]|\\.)*\])+) ?(?:\xef\xbb\xbf)? ?"
)
_FACILITY = re.compile(
    rb"(kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local[0-7]|res[0-9]) *:"
    + _LEVELS
    + rb" *: "
)
_TALOS = re.compile(
    rb"(?:[^\s\[\]]{1,255}: )?([a-z0-9]{2,9}): +" + _LEVELS + rb": \[" + _ISO + _ZONE + rb"\]: ?"
)

# journalctl -o short-delta marks a delta that it cannot know well with "*". It leaves the place of
# the first one, and of the first of a boot, empty.
_DELTA = rb"(?: ?<[ +.\d*-]{1,24}>| {8,24})?"
_STAMP = re.compile(
    rb"\[ *(?:(\d{1,10}\.\d{1,9})(?:,\d{1,5})?" + _DELTA + rb"|"  # a CPU after it: ramoops
    rb"\S{1,12} +\S{1,12} +\d{1,2} "
    + _CLOCK
    + rb"(?: [A-Z]{2,5})? \d{4}"
    + _DELTA
    + rb"|"  # ctime, and with a zone by crash(8)
    rb"[^\s\d]{1,12} ?\d{1,2} \d\d:\d\d|\+ *\d{1,10}\.\d{1,9}|"  # reltime
    rb"<[ +.\d-]{1,24}>)\] ?"  # delta
)
_CALLER = re.compile(rb" {0,2}\[ *[TC]\d{1,10}\] ?")
# A comma before the fraction is dmesg's alone: journalctl and rsyslog write a point.
_DMESG_ISO = re.compile(
    rb"\d{4}-\d\d-\d\dT" + _CLOCK + rb",\d{1,9}(?:Z|[+-]\d\d:?\d\d) (?:\[<[ +.\d-]{1,24}>\] )?"
)
_DAY_FIRST = (
    rb"(?:\d\d[/.-]\d\d[/.-]\d{4}|\d{4}/\d\d/\d\d),? " + _CLOCK + rb"(?:[.,]\d{1,9})?(?: [AP]M)?"
)
# A console server's own time before the kernel's stamp, or a cloud's time and stream before a line;
# the time that ts(1) puts before each line.
_CONSOLE_SERVER = re.compile(
    rb"\[?(?:(?:" + _ISO + _ZONE + rb"|" + _DAY_FIRST + rb")\]?:? +(?:[^\s\[\]:]{1,255} )?"
    rb"(?=\[ *\d{1,10}\.\d{1,9}\]|<\d{1,3}>\[ *\d|[A-Z][a-z]{2} [ \d]\d "
    + _CLOCK
    + rb" |\d{1,9},\d{1,20},\d{1,20},)"
    rb"|[A-Z][a-z]{2} [ \d]\d " + _CLOCK + rb" (?=\[ *\d{1,10}\.\d{1,9}\] ))"
)
# OpenWrt's logread.
_LOGREAD = re.compile(
    rb"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d " + _CLOCK + rb" \d{4} (\w{2,9})\.\w{2,7} "
)

_DATE = re.compile(
    rb"(?:"
    + _ISO
    + rb"(?:Z| ?[+-]\d\d:?\d\d(?: UTC(?= kern\.))?)?|"  # short-iso, rsyslog's file format, moby
    + rb"\S{2,12} \d{4}-\d\d-\d\d "
    + _CLOCK
    + rb"(?:\.\d{1,9})? \S{1,8}|"  # short-full, with-unit
    + rb"[^\s\[\]:<>]{2,12} +\d{1,2} (?:\d{4} )?"
    + _CLOCK
    + rb"(?:\.\d{1,9})?|"  # RFC 3164, short
    rb"\d{1,2} [^\s\d:,]{3,12}, "
    + _CLOCK
    + rb"|"  # IncusOS
    + _DAY_FIRST
    + rb"|\d{9,11}\.\d{6}"  # short-unix
    + rb") +"
)
# The kernel's entries have no process id. A host's name ends with no colon: "app: kernel: " is a
# line of a program.
_KERNEL = re.compile(
    rb"(?:[^\s\[\]]{0,254}[^\s\[\]:] +)?(?:(?:kern\.[a-z]{2,7}|EMERG|ALERT|CRIT|ERR|WARNING|NOTICE"
    rb"|INFO|DEBUG) +)?kernel(?:\[[0-]\])?: ?"
)
#: A line of a program, as syslog and journalctl write it.
_PROGRAM = re.compile(rb"(?:[^\s\[\]:]{1,255} +)?[^\s:\[\]]{1,255}(?:\[\d{1,10}\])?: ?")
#: Signs of a line that has a prefix of another form: the kernel's stamp or name, or a time.
_UNKNOWN = re.compile(rb".{1,200}?(?:\[ *\d{1,10}\.\d{6}\] |\bkernel: |\d\d:\d\d:\d\d)")
# journalctl prints a program's own name (SYSLOG_IDENTIFIER) as it is, so "kernel: NVRM: ..." may be
# a name; then a process id follows, which a line of the driver has only in the name of a process.
_NAMED_AS_DRIVER = re.compile(rb"(?:NVRM: |nvidia-nvswitch).*?\[\d{1,10}\]: ")
_MONOTONIC = re.compile(rb"([^\s\[\]]{0,254}[^\s\[\]:]) ")


@dataclass(frozen=True, slots=True)
class Form:
    """The properties of a whole file that one line does not show.

    ``host``: set for ``journalctl -o short-monotonic``, whose lines have this host and the
    program's name after a stamp that looks like the kernel's. ``facilities``: ``dmesg -x``, which
    leaves out the facility of a line only where it has no name for it, so not for the kernel's.
    """

    host: bytes | None = None
    facilities: bool = False


_PLAIN = Form()


def parse_line(line: bytes, form: Form = _PLAIN) -> Line:
    """The writer and the text of a line. Raises nothing, whatever the bytes."""
    release = _RELEASE.match(line)
    line = line[release.end() :] if release else line
    record = parse(line) if _RAW.match(line) else None
    if record is not None:
        writer = Writer.OTHER if record.facility else Writer.KERNEL
        return Line(writer, record.text, record.at, record)
    framed = _RFC5424.match(line)
    if framed is not None:
        ours = _facility(framed[1] or b"0") == 0 and framed[2] == b"kernel" and framed[3] == b"-"
        return _syslog_text(line[framed.end() :]) if ours else Line(Writer.OTHER, line)
    return _parse_unframed(line, form)


def form_of(lines: Sequence[bytes]) -> Form:
    """The form of the file that begins with these lines. Several logs may be in one file."""
    named = sum(_FACILITY.match(line) is not None for line in lines)
    stamped = sum(_STAMP.match(line) is not None for line in lines)
    return Form(_monotonic_host(lines), facilities=named >= max(stamped, 1))


def _monotonic_host(lines: Sequence[bytes]) -> bytes | None:
    """Each stamped line must begin with the same host, and one of them name the kernel after it."""
    hosts, of_kernel = set(), False
    for line in lines:
        stamp = _STAMP.match(line)
        if stamp is None:
            continue
        named = _MONOTONIC.match(line, stamp.end())
        if named is None:
            return None
        hosts.add(named[1])
        of_kernel = of_kernel or line.startswith(b"kernel: ", named.end())
    return hosts.pop() if of_kernel and len(hosts) == 1 else None


def _parse_unframed(line: bytes, form: Form) -> Line:
    rest, unstated = line, Writer.UNSTATED
    priority = _PRIORITY.match(rest)
    if priority is not None:
        if _facility(priority[1]) != 0:
            return Line(Writer.OTHER, line)
        rest, unstated = rest[priority.end() :], Writer.KERNEL
    for pattern in (_FACILITY, _TALOS):
        named = pattern.match(rest)
        if named is not None:
            ours = named[1] == b"kern"
            return _kernel_text(rest[named.end() :]) if ours else Line(Writer.OTHER, line)
    iso = _DMESG_ISO.match(rest)
    named = _KERNEL.match(rest, iso.end()) if iso else None
    if named is not None:  # a syslog file with a comma
        return _syslog_text(rest[named.end() :])
    if iso is not None or _STAMP.match(rest):
        return _stamped(rest, form) if priority is None else _kernel_text(rest)
    served = _CONSOLE_SERVER.match(rest)
    if served is not None:
        return _unless_named_so(parse_line(rest[served.end() :]))
    read = _LOGREAD.match(rest)
    if read is not None:
        ours = read[1] == b"kern" and rest.startswith(b"kernel: ", read.end())
        return _syslog_text(rest[read.end() + 8 :]) if ours else Line(Writer.OTHER, line)
    dated = _DATE.match(rest)
    if dated is not None:
        named = _KERNEL.match(rest, dated.end())
        if named:
            return _syslog_text(rest[named.end() :])
        return Line(Writer.OTHER, line, known=_PROGRAM.match(rest, dated.end()) is not None)
    if rest.startswith(b"kernel: "):
        claimed = _kernel_text(rest.removeprefix(b"kernel: "))
        return Line(Writer.CLAIMED, claimed.text, claimed.at)
    return Line(unstated, rest, known=unstated is Writer.KERNEL or not _UNKNOWN.match(rest))


def _syslog_text(text: bytes) -> Line:
    """As ``_kernel_text``; rsyslog writes the newline of a record as "#012" (its octal code).

    The newline becomes the kernel's own escape, so the record stays one. "@cee:" begins JSON (CEE).
    """
    if text.lstrip().startswith(b"@cee:"):
        with contextlib.suppress(ValueError, LookupError, TypeError):
            message = str(read_json(text.lstrip().removeprefix(b"@cee:"))["msg"])
            text = message.replace("\n", r"\x0a").encode("utf-8", "replace")
    return _unless_named_so(_kernel_text(text.replace(b"#012", rb"\x0a")))


def _unless_named_so(line: Line) -> Line:
    """``line``, which its form attributes to "kernel"; another program's where that is its name."""
    named = _NAMED_AS_DRIVER.match(line.text)
    return Line(Writer.OTHER, line.text, line.at) if named else line


def _kernel_text(text: bytes) -> Line:
    """The text of a line that is the kernel's, without the kernel's own level, stamp and caller."""
    level = _PRIORITY.match(text)
    if level is not None:
        if _facility(level[1]) != 0:
            return Line(Writer.OTHER, text)
        text = text[level.end() :]
    stamp = _STAMP.match(text)
    at = float(stamp[1]) if stamp and stamp[1] else -1.0
    stamp = stamp or _DMESG_ISO.match(text)
    if stamp is not None:
        text = text[stamp.end() :]
        if at < 0 and (inner := _STAMP.match(text)):  # a console server's time before the kernel's
            at, text = float(inner[1] or -1), text[inner.end() :]
        caller = _CALLER.match(text)
        text = text[caller.end() :] if caller else text
        # journalctl -o short-monotonic --no-hostname has the program's name alone.
        if text.startswith(b"kernel: "):
            return _unless_named_so(Line(Writer.KERNEL, text.removeprefix(b"kernel: "), at))
    return Line(Writer.KERNEL, text, at)


def _stamped(text: bytes, form: Form) -> Line:
    """A line with no prefix except a stamp that looks like the kernel's."""
    line = _kernel_text(text)
    if form.facilities:
        return Line(Writer.OTHER, line.text)
    if form.host is None:
        return line
    head = form.host + b" kernel: "
    if not line.text.startswith(head):
        return Line(Writer.OTHER, line.text)
    return _unless_named_so(Line(Writer.KERNEL, line.text[len(head) :], line.at))


def _facility(priority: bytes) -> int:
    return int(priority) >> 3
