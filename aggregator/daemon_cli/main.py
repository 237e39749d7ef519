"""``sickbay-aggregator``: run the aggregator, check its configuration, evaluate its policy.

Exit codes: 0; 1 for an error that keeps it from starting or makes it fail; 2 for a command line or
a configuration that is wrong, with the problems on stderr. `policy replay` has diff's.
"""

import argparse
import difflib
import logging
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path

from aggregator.config import access, repair
from aggregator.config.settings import Config, ConfigError, load
from aggregator.config.unreleased_files import damaged_files, unreleased_files
from aggregator.configfile.yaml_source import Key, read
from aggregator.daemon_cli import policy
from aggregator.daemon_cli.file_check import unusable_alert_files, unusable_files
from aggregator.daemon_cli.subcommand import add_command, print_visibly
from aggregator.ingest import grpc_env
from aggregator.runtime.imports import imports_without_collections
from aggregator.version import VERSION
from sickbay.arguments import SuggestingParser

log = logging.getLogger("sickbay.app")

OK, FAILED, USAGE = 0, 1, 2
INTERRUPTED = 130

DEFAULT_CONFIG = Path("/etc/sickbay/aggregator.yaml")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command of the command line, and exit."""
    options, code = argparse.Namespace(command=None), OK
    try:
        options = parser().parse_args(arguments)
        code = options.command(options)
        sys.stdout.flush()
    except ConfigError as error:
        for line in error.lines():
            print_visibly(line, sys.stderr)
        code = USAGE
    except KeyboardInterrupt:
        code = INTERRUPTED
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # the reader, for example head, has gone
            if options.command is _run:  # a defect; its traceback explains it best
                raise
            print(f"sickbay-aggregator: the answer can't be written: {error}", file=sys.stderr)
            code = options.trouble if "trouble" in options else FAILED
        # Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run(options: argparse.Namespace) -> int:
    config = load(options.file)
    _refuse(
        options.file,
        [
            *_wrong_cluster(config),
            *_unknown_rules(config),
            *_unusable_rules(config),
            *unusable_alert_files(config),
            *unreleased_files(config),
        ],
    )
    # Imports take a second, so an invalid file is refused sooner.
    with imports_without_collections():
        with grpc_env.grpc_environment(os.environ):
            import grpc  # noqa: F401 - before anything else imports it

        import asyncio

        from aggregator import app
        from aggregator.cluster.port import ClusterTooOld, Refused
        from aggregator.composition.access import AccessSetupError
        from aggregator.composition.identity import ReplicaIdentityError
        from aggregator.config.data_dirs import DataDirError, exclusive_lock
        from aggregator.ingest.os_limits import ListenError
        from aggregator.ingest.tls import TlsError
        from aggregator.runtime import gc_tuning, logs
        from aggregator.tls.client_context import CaFileError
        from aggregator.web.connections import WebListenError

    try:
        config.cluster.traits.check_start(config.cluster.settings, os.environ)
    except Refused as error:
        print(f"sickbay-aggregator: {error}", file=sys.stderr)
        return USAGE
    logs.start(config.log_level)
    log_removed_bounds(config)
    gc_tuning.raise_thresholds()
    try:
        with exclusive_lock(config):
            starts = True
            while asyncio.run(app.run(config, starts=starts)):
                starts = False  # another replica is the controller: continue as a gateway
    except (
        AccessSetupError,
        ListenError,
        ReplicaIdentityError,
        DataDirError,
        TlsError,
        CaFileError,
        WebListenError,
    ) as error:
        print(f"sickbay-aggregator: {error}", file=sys.stderr)
        return FAILED
    except ClusterTooOld as error:
        print(f"sickbay-aggregator: {error}", file=sys.stderr)
        return USAGE
    return OK


def log_removed_bounds(config: Config) -> None:
    """A warning for each bound that the file takes away and does not accept by name."""
    from aggregator.config.removed_bounds import unaccepted_bounds

    for key, text in unaccepted_bounds(config):
        name = ".".join(map(str, key))
        log.warning(
            "the configuration takes a bound away",
            extra={"event": "config.bound_removed", "key": name, "error": text},
        )


def _check(options: argparse.Namespace) -> int:
    from aggregator.cluster.port import Action
    from aggregator.config.removed_bounds import (
        labels_of_kubelets,
        removed_bounds,
        unaccepted_bounds,
    )
    from aggregator.daemon_cli.pools import pools_of
    from aggregator.policy.defaults import read_with_warnings

    reads_files = not options.without_files
    config = load(options.file, root=Path("/") if reads_files else None)
    rules = config.policy.file if reads_files else None
    odd = read_with_warnings(rules)[1] if rules is not None else ()
    found = [*_wrong_cluster(config), *unaccepted_bounds(config)]
    if reads_files:
        found += [
            *_unknown_rules(config),
            *_unusable_rules(config),
            *unusable_files(config),
            *unusable_alert_files(config),
            *unreleased_files(config),
            *damaged_files(config),
        ]
    _refuse(options.file, found)
    acts = pools_of(config).strongest is not Action.OBSERVE
    unbounded = list(removed_bounds(config))
    without = f", WITHOUT {len(unbounded)} of its bounds" if unbounded else ""
    print(f"{options.file}: sound (mode {config.mode}, {config.cluster.kind} cluster){without}")
    if not reads_files:
        print("Not checked: the files and programs that it names.")
    for key, text in (
        *unbounded,
        *labels_of_kubelets(config),
        *access.warnings(config),
        *(_absent(config) if reads_files else ()),
        *repair.warnings(config.repair, acts=acts),
    ):
        problem = read(options.file).problem(key, text)
        where = f"{options.file}:{problem.line}"
        print(f"{where}: warning: {problem.key}: {problem.text}", file=sys.stderr)
    policy.warn_of_pools(options.file, config)
    if rules is not None:
        policy.warn(rules, odd)
    return OK


def _schema(_options: argparse.Namespace) -> int:
    schema = files("aggregator.config") / "aggregator.schema.json"
    print(schema.read_text("utf-8"), end="")
    return OK


def _refuse(file: Path, unusable: Iterable[tuple[Key, str]]) -> None:
    found = list(unusable)
    if found:
        document = read(file)
        raise ConfigError(str(file), [document.problem(*one) for one in found])


def _wrong_cluster(config: Config) -> Iterator[tuple[Key, str]]:
    for key, text in config.cluster.traits.problems(config.cluster.settings):
        yield ("cluster", *key), text


def _unknown_rules(config: Config) -> Iterator[tuple[Key, str]]:
    """Names in ``conditions`` that no rule has: such a condition would never be written."""
    if config.conditions:
        from aggregator.policy.defaults import read_policy

        known = read_policy(config.policy.file).by_name
        for number, one in enumerate(config.conditions):
            for name in one.unmatched(known):
                near = difflib.get_close_matches(name, known, 1)
                guess = f' (did you mean "{near[0]}"?)' if near else ""
                text = f'no rule is named "{name}"{guess}; expected a rule of the policy'
                yield ("conditions", number, "rules"), text


def _unusable_rules(config: Config) -> Iterator[tuple[Key, str]]:
    """Rules about node conditions that there are not, or that the aggregator writes itself."""
    if config.policy.file is None:
        return
    from aggregator.policy.defaults import read_policy
    from aggregator.policy.slurm_reason import SLURM_TYPES

    written = {one.type for one in config.conditions}
    for rule in read_policy(config.policy.file).rules:
        what = f"rule {rule.name!r} is about the node condition {rule.condition}"
        shipped = rule.condition in SLURM_TYPES
        if rule.condition and not shipped and not config.cluster.has_api_server:
            kind = config.cluster.kind
            text = f'{what}, and cluster.kind is "{kind}"; expected no such rule without Kubernetes'
            yield ("policy", "file"), text
        if rule.condition in written:
            text = f"{what}, which `conditions` writes: its own evidence; expected another type"
            yield ("policy", "file"), text


def _absent(config: Config) -> Iterator[tuple[Key, str]]:
    """The site's own programs that can't be run from here, which would otherwise show when a node
    is unhealthy.
    """
    kind, settings = config.cluster.traits, config.cluster.settings
    named: dict[Key, Sequence[str]] = {
        **{("cluster", *key): command for key, command in kind.commands(settings)},
        ("drain", "pre_evict", "command"): config.drain.pre_evict.command,
        ("drain", "post_release", "command"): config.drain.post_release.command,
        **{key: (program,) for key, program in repair.programs(config.repair)},
    }
    for key, command in named.items():
        if command and "{" not in command[0] and shutil.which(command[0]) is None:
            hint = "right if the aggregator runs elsewhere, or in an image that has it"
            yield key, f"no program can be run here as {command[0]!r}; {hint}"


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    whole = SuggestingParser(
        prog="sickbay-aggregator",
        description="Evaluates the reports of the agents, and quarantines bad nodes.",
    )
    whole.add_argument("--version", action="version", version=f"sickbay-aggregator {VERSION}")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")

    run = add_command(commands, "run", "run the aggregator until SIGTERM or SIGINT")
    run.add_argument(
        "--config",
        dest="file",
        type=Path,
        default=DEFAULT_CONFIG,
        metavar="FILE",
        help=f"its configuration (default: {DEFAULT_CONFIG})",
    )
    run.set_defaults(command=_run)

    config = add_command(commands, "config", "check a configuration, or print its schema")
    about = config.add_subparsers(required=True, metavar="COMMAND")
    check = add_command(
        about,
        "check",
        "list every error of a configuration",
        "Exit code: 0 it is sound, 2 it has errors.",
    )
    check.add_argument("file", type=Path, metavar="FILE", help="the configuration")
    check.add_argument(
        "--without-files",
        action="store_true",
        help="read none of the files that it names: they are where the aggregator runs",
    )
    check.set_defaults(command=_check)
    schema = add_command(
        about, "schema", "print the JSON Schema of the configuration, for an editor"
    )
    schema.set_defaults(command=_schema)

    policy.add_to(commands)
    return whole
