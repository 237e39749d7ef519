"""The options that several commands share."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from aggregator.cli.arguments import namespace
from aggregator.cli.output import TABLE, form, text_or_json
from aggregator.cli.source import DEFAULT_URL
from aggregator.runtime.cli_flags import NAMESPACE, target_flags


def output_option(parser: argparse.ArgumentParser) -> None:
    """-o of a command with an object as its answer."""
    parser.add_argument(
        "-o",
        "--output",
        type=form,
        default=TABLE,
        metavar="FORM",
        help="table (default), wide, json, yaml, name or jsonpath=TEMPLATE",
    )


def sentence_option(parser: argparse.ArgumentParser) -> None:
    """-o of a command with a sentence as its answer."""
    parser.add_argument(
        *("-o", "--output"),
        type=text_or_json,
        default=TABLE,
        metavar="FORM",
        help="table (default) or json",
    )


def cluster_options() -> argparse.ArgumentParser:
    """The options that select a cluster."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--kubeconfig", default="", metavar="FILE", help="default: as kubectl")
    common.add_argument("--context", default="", help="of the kubeconfig; default: its current one")
    common.add_argument(
        "-n",
        "--namespace",
        type=namespace,
        default=NAMESPACE,
        help=f"the namespace of sickbay (default: {NAMESPACE})",
    )
    return common


def source_options(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """The options that set where to read."""
    common = argparse.ArgumentParser(add_help=False, parents=[cluster_options()])
    url = environ.get("SICKBAY_URL") or ""
    now = url or f"the cluster of your kubeconfig; without one {DEFAULT_URL}"
    common.add_argument(
        "--url",
        default=url,
        help=f"the aggregator's address (SICKBAY_URL; now: {now})".replace("%", "%%"),
    )
    common.add_argument(
        "--ca-file",
        default=environ.get("SICKBAY_CA_FILE", ""),
        metavar="FILE",
        help="the CA of its certificate (SICKBAY_CA_FILE; default: with a kubeconfig the one that "
        "the aggregator publishes, else the system's authorities)",
    )
    common.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="with --url, a token for an aggregator that requires one (or SICKBAY_TOKEN)",
    )
    return common


def reading_options(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """The options of commands that read."""
    common = argparse.ArgumentParser(add_help=False, parents=[source_options(environ)])
    output_option(common)
    return common


def list_options() -> argparse.ArgumentParser:
    """The options of commands that list."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "-l",
        "--selector",
        default="",
        metavar="LABELS",
        help="only nodes with these labels, as with kubectl; needs a kubeconfig",
    )
    common.add_argument(
        "--sort-by",
        default="",
        metavar="FIELD",
        help="sort by a field of -o json, such as .node",
    )
    return common


def acting_options() -> argparse.ArgumentParser:
    """The options of commands that act."""
    common = argparse.ArgumentParser(add_help=False, parents=[cluster_options()])
    local_option(common)
    dry_run_option(common)
    sentence_option(common)
    return common


def _database(text: str) -> Path | str:
    """A file, or the URL of a database; its password is in PGPASSFILE."""
    if "://" not in text:
        return Path(text)
    from pydantic_core import PydanticCustomError

    from aggregator.configfile.values import shared_database_url

    try:
        return shared_database_url(text)
    except PydanticCustomError as error:
        raise argparse.ArgumentTypeError(error.message()) from error


def local_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--local",
        type=_database,
        metavar="DATABASE",
        help="act on a local cluster's file (cluster.local.database) or shared database "
        "(cluster.store.database) and not on Kubernetes",
    )


def dry_run_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check the request at the API server, or with --local on a copy, and write nothing",
    )


def yes_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-y", "--yes", action="store_true", help="require no confirmation")


def flags_of(options: argparse.Namespace) -> str:
    """The options that a person needs to take a request back: it is for this cluster."""
    local = getattr(options, "local", None)
    return target_flags(
        local=str(local) if local is not None else None,
        kubeconfig=options.kubeconfig,
        context=options.context,
        namespace=options.namespace,
    )
