"""What ``sickbay-agent config check`` finds wrong in the files of tokens and certificates.

The agent reads them at each connection, because they rotate, and reports a wrong one in its log.
"""

import ssl
from pathlib import Path

from nodeagent.config.settings import Config
from nodeagent.configfile.toml_table import Problem
from sickbay import regular_file


def problems(file: Path, config: Config) -> list[Problem]:
    """Those of the configuration in ``file``."""
    uplink = config.uplink
    found: list[tuple[str, str, str]] = []
    for key, path in (
        ("aggregator.token_file", uplink.token_file),
        ("metrics_token_file", config.metrics_token_file),
    ):
        if path is not None and not _has_token(path):
            found.append((key, f"{path} has no token", "one on one line"))
    if uplink.ca_file is not None and (what := wrong_with_authorities(uplink.ca_file)):
        found.append(("aggregator.ca_file", f"{uplink.ca_file} {what}", "a CA in PEM"))
    pair = uplink.cert_file, uplink.key_file
    if pair[0] is not None and (what := _wrong_with_pair(pair[0], pair[1])):
        found.append(("aggregator.cert_file", what, "a certificate and its key, in PEM"))
    return [Problem(str(file), 0, key, what, expected) for key, what, expected in found]


def wrong_with_authorities(ca_file: Path) -> str:
    """Why the file verifies no server; empty when it can."""
    if not ca_file.is_file():
        return "is no file"
    try:
        ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # an SSLError is one
        return f"can't be read as certificates: {error.strerror or error}"
    return ""


def _wrong_with_pair(certificate: Path, key: Path | None) -> str:
    try:
        ssl.create_default_context().load_cert_chain(certificate, key, password="")
    except OSError as error:
        return f"{certificate} and {key} can't be used: {error.strerror or error}"
    return ""


def _has_token(path: Path) -> bool:
    try:
        token = regular_file.read(path).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return False
    return bool(token) and token.isprintable()
