"""The command line `sickbay`.

Exit codes: 0; 1 for a command that failed (out of reach, refused, not there); 2 for a command line
that makes no sense.
"""

import argparse
import datetime as dt
import getpass
import io
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aggregator.cli import render
from aggregator.cli.client import Client
from aggregator.cli.errors import CommandFailed, UsageError
from aggregator.cli.text_table import printable
from aggregator.runtime.cli_flags import NAMESPACE, target_flags

OK, FAILED, USAGE = 0, 1, 2
INTERRUPTED = 130

_DEFAULT_URL = "http://127.0.0.1:8080"
_STANDINGS = ("ok", "unknown", "silent", "warning", "held", "quarantined")
#: Longer than two of the stream's beats (seconds).
_WATCH_TIMEOUT = 25.0

Show = Callable[[dict[str, Any], render.Screen], Iterator[str]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line asks for, and exit."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may not have every letter
        sys.stdout.reconfigure(errors="replace")
    options = _parser(os.environ).parse_args(arguments)
    try:
        options.command(options)
        sys.stdout.flush()
    except UsageError as error:
        print(f"sickbay: {printable(str(error))}", file=sys.stderr)
        sys.exit(USAGE)
    except CommandFailed as error:
        print(f"sickbay: {printable(str(error))}", file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, say) has closed the pipe. Python would report that again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(OK)
    except OSError as error:
        print(f"sickbay: the answer can't be written: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    sys.exit(OK)


# -- reading -------------------------------------------------------------------------------


def _client(options: argparse.Namespace, timeout: float = 10.0) -> Client:
    return Client(options.url, ca_file=options.ca_file, timeout=timeout)


def _print(options: argparse.Namespace, answer: dict[str, Any], how: Show) -> None:
    if options.output == "json":
        print(json.dumps(answer, indent=2, ensure_ascii=True))
        return
    # On a terminal lines are cut to its width; in a pipe they are whole.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in how(answer, render.Screen(dt.datetime.now(dt.UTC), width)):
        print(line)


def _status(options: argparse.Namespace) -> None:
    _print(options, _client(options).get("fleet"), render.status)


def _nodes(options: argparse.Namespace) -> None:
    """All pages, as one."""
    client = _client(options)
    items: list[dict[str, Any]] = []
    after = ""
    while True:
        page = client.get("nodes", standing=options.standing, limit=1000, after=after)
        items += page["items"]
        after = page["next"]
        if not after:
            break
    total = page["total"]
    if options.exempt:
        items = [one for one in items if one["exempt"]]
        total = len(items)
    how = partial(render.nodes, asked=bool(options.standing or options.exempt))
    _print(options, {"items": items, "total": total, "next": ""}, how)


def _node(options: argparse.Namespace) -> None:
    _print(options, _client(options).get("nodes", options.name), render.node)


def _quarantines(options: argparse.Namespace) -> None:
    _print(options, _client(options).get("quarantines"), render.quarantines)


def _incidents(options: argparse.Namespace) -> None:
    _print(options, _client(options).get("incidents", limit=options.limit), render.incidents)


def _lemons(options: argparse.Namespace) -> None:
    _print(options, _client(options).get("lemons"), render.lemons)


def _replicas(options: argparse.Namespace) -> None:
    _print(options, _client(options).get("replicas"), render.replicas)


def _history(options: argparse.Namespace) -> None:
    answer = _client(options).get(
        "transitions",
        node=options.node,
        since=options.since,
        until=options.until,
        limit=options.limit,
    )
    _print(options, answer, render.history)


def _watch(options: argparse.Namespace) -> None:
    from aggregator.cli.watch import watch

    said = ""

    def tell(name: str, data: Any) -> None:
        nonlocal said
        if options.output == "json":
            print(json.dumps({"event": name, "data": data}), flush=True)
        elif name == "transition":
            print(render.event(data), flush=True)
        elif name == "fleet" and data["headline"] != said:
            said = data["headline"]
            print(render.event({"at": data["at"], "kind": "fleet", "summary": said}), flush=True)
        elif name == "missed":
            print(f"... {data['transitions']} more happened than could be told", flush=True)

    rng = random.Random()  # noqa: S311 - jitter, no secret
    watch(_client(options, _WATCH_TIMEOUT), options.node, tell, rng=rng)


# -- acting ----------------------------------------------------------------------------------


def _hands(options: argparse.Namespace) -> Any:
    """The target of the request. Imported here: it costs a second of imports that reading doesn't
    need.
    """
    if options.local is not None:
        from aggregator.cli.local_actions import LocalActions

        return LocalActions(options.local, how=_how(options))
    from aggregator.cli.kube_actions import KubeActions
    from aggregator.cluster.kubernetes.credentials import CredentialSources

    sources = CredentialSources(options.kubeconfig, options.context, os.environ)
    return KubeActions(sources, options.namespace, how=_how(options))


def _how(options: argparse.Namespace) -> str:
    """The options that a person needs to take the request back: it is for this cluster."""
    return target_flags(
        local=options.local,
        kubeconfig=options.kubeconfig,
        context=options.context,
        namespace=options.namespace,
    )


def _say(options: argparse.Namespace, text: str) -> None:
    done = {"done": True, "message": text}
    print(json.dumps(done) if options.output == "json" else printable(text))


def _reason(options: argparse.Namespace) -> str:
    reason = _readable(options.reason.strip())
    if not reason:
        raise UsageError("--reason: it is empty; say why, for the next person on call")
    return reason


def _readable(text: str) -> str:
    """Text that can be written: bytes of an argument that are no UTF-8 must not keep a stop from
    working.
    """
    return text.encode("utf-8", "replace").decode("utf-8")


def _stop(options: argparse.Namespace) -> None:
    _say(options, _hands(options).stop(_reason(options)))


def _resume(options: argparse.Namespace) -> None:
    _say(options, _hands(options).resume())


def _release(options: argparse.Namespace) -> None:
    _say(options, _hands(options).release(options.name))


def _exempt(options: argparse.Namespace) -> None:
    from aggregator.cli.actions import exempted, seconds_of

    reason = _reason(options)
    until = dt.datetime.now(dt.UTC).timestamp() + seconds_of(options.how_long)
    wish = exempted(options.name, until, reason, how=_how(options))
    _say(options, _hands(options).annotate(options.name, wish))


def _unexempt(options: argparse.Namespace) -> None:
    from aggregator.cli.actions import unexempted

    _say(options, _hands(options).annotate(options.name, unexempted(options.name)))


def _pin(options: argparse.Namespace) -> None:
    from aggregator.cli.actions import pinned

    wish = pinned(options.name, _reason(options), how=_how(options))
    _say(options, _hands(options).annotate(options.name, wish))


def _unpin(options: argparse.Namespace) -> None:
    from aggregator.cli.actions import unpinned

    _say(options, _hands(options).annotate(options.name, unpinned(options.name)))


def _forget(options: argparse.Namespace) -> None:
    if options.local is None:
        what = "Kubernetes itself knows which nodes there are: kubectl delete node"
        raise UsageError(f"forget: {what}; expected --local DATABASE")
    _say(options, _hands(options).forget_node(options.name))


def _quarantine(options: argparse.Namespace) -> None:
    from aggregator.cli.actions import wish
    from aggregator.cluster.port import Action

    who = _readable(options.requester) or getpass.getuser()
    spec = wish(Action(options.action), _reason(options), who)
    _say(options, _hands(options).quarantine(options.name, spec))


# -- the command line --------------------------------------------------------------------------


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sickbay",
        description="The health of the fleet's nodes, and what is done about it.",
        epilog="Reading asks the aggregator (--url). stop, resume, release, quarantine, exempt and "
        "pin go to the cluster itself, with your own kubeconfig.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"sickbay {version('sickbay')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_reading(commands, _reading_options(environ))
    _add_acting(commands, _acting_options())
    return parser


def _output_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="default: table"
    )


def _reading_options(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    url = environ.get("SICKBAY_URL") or _DEFAULT_URL
    common.add_argument(
        "--url", default=url, help=f"the aggregator (SICKBAY_URL; now: {url})".replace("%", "%%")
    )
    common.add_argument(
        "--ca-file",
        default=environ.get("SICKBAY_CA_FILE", ""),
        metavar="FILE",
        help="the CA of its certificate (SICKBAY_CA_FILE; default: the system's authorities)",
    )
    _output_option(common)
    return common


def _acting_options() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--kubeconfig", default="", metavar="FILE", help="default: as kubectl")
    common.add_argument("--context", default="", help="of the kubeconfig; default: its current one")
    common.add_argument(
        "--namespace",
        type=_namespace,
        default=NAMESPACE,
        help=f"sickbay's own; default: {NAMESPACE}",
    )
    common.add_argument(
        "--local",
        type=Path,
        metavar="DATABASE",
        help="act on a local cluster's file (cluster.local.database) and not on Kubernetes",
    )
    _output_option(common)
    return common


def _add_reading(commands: Any, common: argparse.ArgumentParser) -> None:
    def add(name: str, text: str, command: Callable[[argparse.Namespace], None]) -> Any:
        made = commands.add_parser(name, help=text, parents=[common], allow_abbrev=False)
        made.set_defaults(command=command)
        return made

    add("status", "the fleet at a glance", _status)
    nodes = add("nodes", "every node, or those that stand so", _nodes)
    nodes.add_argument("--standing", choices=_STANDINGS, default="")
    nodes.add_argument("--exempt", action="store_true", help="only those that are left alone")
    node = add("node", "one node's story", _node)
    node.add_argument("name", type=_node_name, metavar="NAME")
    add("quarantines", "the quarantines under way", _quarantines)
    incidents = add("incidents", "the open incidents", _incidents)
    incidents.add_argument("--limit", type=_positive, default=100, metavar="N")
    add("lemons", "nodes that come back again and again", _lemons)
    add("replicas", "the aggregator's replicas, and which don't answer", _replicas)
    history = add("history", "what happened", _history)
    history.add_argument("--node", default="", metavar="NAME", help="only about this node")
    history.add_argument("--since", default="", metavar="TIME", help="e.g. 2026-01-31T03:14:00Z")
    history.add_argument("--until", default="", metavar="TIME", help="only transitions up to then")
    history.add_argument("--limit", type=_positive, default=50, metavar="N")
    watch = add("watch", "transitions as they happen (Ctrl-C ends it)", _watch)
    watch.add_argument("--node", default="", metavar="NAME", help="only about this node")


def _add_acting(commands: Any, common: argparse.ArgumentParser) -> None:
    def add(name: str, text: str, command: Callable[[argparse.Namespace], None]) -> Any:
        made = commands.add_parser(name, help=text, parents=[common], allow_abbrev=False)
        made.set_defaults(command=command)
        return made

    stop = add("stop", "stop new quarantines and evictions, on all nodes", _stop)
    stop.add_argument("--reason", required=True, help="why, for the next person on call")
    add("resume", "go on after a stop", _resume)
    release = add("release", "end a node's quarantine", _release)
    release.add_argument("name", type=_node_name, metavar="NODE")
    quarantine = add("quarantine", "quarantine a node by hand", _quarantine)
    quarantine.add_argument("name", type=_node_name, metavar="NODE")
    quarantine.add_argument("--action", choices=("cordon", "drain"), required=True)
    quarantine.add_argument("--reason", required=True, help="why, for the next person on call")
    quarantine.add_argument("--requester", default="", metavar="WHO", help="default: your name")
    exempt = add("exempt", "have a node left alone for a time", _exempt)
    exempt.add_argument("name", type=_node_name, metavar="NODE")
    exempt.add_argument(
        "--for", dest="how_long", required=True, metavar="TIME", help="such as 30m, 8h or 7d"
    )
    exempt.add_argument("--reason", required=True, help="why, for the next person on call")
    unexempt = add("unexempt", "have it judged as any other again", _unexempt)
    unexempt.add_argument("name", type=_node_name, metavar="NODE")
    pin = add("pin", "keep a node's quarantine until it is unpinned", _pin)
    pin.add_argument("name", type=_node_name, metavar="NODE")
    pin.add_argument("--reason", required=True, help="why, for the next person on call")
    forget = add("forget", "take a name that is no node's out of a local cluster's file", _forget)
    forget.add_argument("name", type=_node_name, metavar="NODE")
    unpin = add("unpin", "let the node go when it is well", _unpin)
    unpin.add_argument("name", type=_node_name, metavar="NODE")


def _node_name(text: str) -> str:
    """A node's name. An empty one (a shell's variable that is not set) would mean all nodes, and
    without Kubernetes no other check refuses an invalid name.
    """
    if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", text) is None:
        what = "expected a node's name: letters, digits, '-', '_' and '.', at most 253"
        raise argparse.ArgumentTypeError(f"{text!r}: {what}")
    return text


def _namespace(text: str) -> str:
    if re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text) is None:
        what = "expected a namespace's name: small letters, digits and '-', at most 63"
        raise argparse.ArgumentTypeError(f"{text!r}: {what}")
    return text


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'"{text}": expected a whole number from 1 on')
    return int(text)
