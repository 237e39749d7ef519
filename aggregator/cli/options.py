"""The options that several commands share."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from aggregator.cli.arguments import Parser, namespace
from aggregator.cli.output import TABLE, form, text_or_json
from aggregator.cli.source import DEFAULT_URL
from aggregator.runtime.cli_flags import NAMESPACE, target_flags


def output_option(parser: Parser) -> None:
    """-o of a command with an object as its answer."""
    text = "table (default), wide, json, yaml, name or jsonpath=TEMPLATE"
    parser.value("-o --output", "FORM", text, form, TABLE)


def sentence_option(parser: Parser) -> None:
    """-o of a command with a sentence as its answer."""
    parser.value("-o --output", "FORM", "table (default) or json", text_or_json, TABLE)


def cluster_options() -> Parser:
    """The options that select a cluster."""
    common = Parser(add_help=False)
    common.value("--kubeconfig", "FILE", "default: as kubectl")
    common.value("--context", "CONTEXT", "of the kubeconfig; default: its current one")
    text = f"the namespace of sickbay (default: {NAMESPACE})"
    common.value("-n --namespace", "NAMESPACE", text, namespace, NAMESPACE)
    return common


def source_options(environ: Mapping[str, str]) -> Parser:
    """The options that set where to read."""
    common = Parser(add_help=False, parents=[cluster_options()])
    url = environ.get("SICKBAY_URL") or ""
    now = url or f"the cluster of your kubeconfig; without one {DEFAULT_URL}"
    text = f"the aggregator's address (SICKBAY_URL; now: {now})".replace("%", "%%")
    common.value("--url", "URL", text, str, url)
    common.value(
        "--ca-file",
        "FILE",
        "the CA of its certificate (SICKBAY_CA_FILE; default: with a kubeconfig the one that "
        "the aggregator publishes, else the system's authorities)",
        str,
        environ.get("SICKBAY_CA_FILE", ""),
    )
    common.value(
        "--token-file",
        "FILE",
        "with --url, a token for an aggregator that requires one (or SICKBAY_TOKEN)",
    )
    return common


def reading_options(environ: Mapping[str, str]) -> Parser:
    """The options of commands that read."""
    common = Parser(add_help=False, parents=[source_options(environ)])
    output_option(common)
    return common


def list_options() -> Parser:
    """The options of commands that list."""
    common = Parser(add_help=False)
    text = "only nodes with these labels, as with kubectl; needs a kubeconfig"
    common.value("-l --selector", "LABELS", text)
    common.value("--sort-by", "FIELD", "sort by a field of -o json, such as .node")
    return common


def acting_options() -> Parser:
    """The options of commands that act."""
    common = Parser(add_help=False, parents=[cluster_options()])
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


def local_option(parser: Parser) -> None:
    parser.value(
        "--local",
        "DATABASE",
        "act on a local cluster's file (cluster.local.database) or shared database "
        "(cluster.store.database) and not on Kubernetes",
        _database,
    )


def dry_run_option(parser: Parser) -> None:
    text = "check the request at the API server, or with --local on a copy, and write nothing"
    parser.flag("--dry-run", text)


def yes_option(parser: Parser) -> None:
    parser.flag("-y --yes", "require no confirmation")


def flags_of(options: argparse.Namespace) -> str:
    """The options that a person needs to take a request back: it is for this cluster."""
    local = getattr(options, "local", None)
    return target_flags(
        local=str(local) if local is not None else None,
        kubeconfig=options.kubeconfig,
        context=options.context,
        namespace=options.namespace,
    )
