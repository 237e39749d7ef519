"""`config check` with garbage in the files that a configuration names: each message has the key,
the file, the problem and what is expected instead, and no secret.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.aggregator.config_files import written
from tests.support.config_check import config_check
from tests.support.pki import Authority

SECRET = "s3cr3t-of-the-site"
TOKENS = f"{SECRET}-0123456789,hall-2,operator\n"

#: The ends of the keys of secrets.
SECRETS = ("secret_file", "url_file", "token_file")
#: What the file of each key should hold; empty: a certificate or its key.
FILES = {
    "listen.tls.cert_file": "",
    "listen.tls.key_file": "",
    "listen.tls.client_ca_file": "",
    "access.tokens_file": TOKENS,
    "access.oidc.client_secret_file": SECRET,
    "access.oidc.ca_file": "",
    "drain.pre_evict.webhook.secret_file": SECRET,
    "drain.notice.webhooks[0].secret_file": SECRET,
    "alerts.receivers[0].webhook.secret_file": SECRET,
    "alerts.receivers[1].slack.url_file": f"https://hooks.test/{SECRET}",
    "alerts.receivers[2].alertmanager.http.bearer_token_file": SECRET,
    "alerts.receivers[2].alertmanager.http.ca_file": "",
}
TEXT = """
listen:
  grpc: 'localhost:0'
  web: 'localhost:0'
  tls:
    cert_file: listen.tls.cert_file
    key_file: listen.tls.key_file
    client_ca_file: listen.tls.client_ca_file
cluster: {kind: local}
identity: {kind: certificate}
access:
  anonymous: false
  tokens_file: access.tokens_file
  oidc:
    issuer: https://issuer.test
    client_id: sickbay
    client_secret_file: access.oidc.client_secret_file
    page: https://page.test
    viewers: [all]
    ca_file: access.oidc.ca_file
drain:
  pre_evict:
    webhook: {url: "https://a.test", secret_file: drain.pre_evict.webhook.secret_file}
  notice:
    webhooks:
      - {match: "*", url: "https://a.test", secret_file: "drain.notice.webhooks[0].secret_file"}
alerts:
  receivers:
    - name: a
      webhook: {url: "https://a.test", secret_file: "alerts.receivers[0].webhook.secret_file"}
    - name: b
      slack: {url_file: "alerts.receivers[1].slack.url_file"}
    - name: c
      alertmanager:
        url: https://a.test
        http:
          bearer_token_file: "alerts.receivers[2].alertmanager.http.bearer_token_file"
          ca_file: "alerts.receivers[2].alertmanager.http.ca_file"
"""


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The right content of each file."""
    authority = Authority.create(tmp_path_factory.mktemp("pki"))
    pair = authority.server("aggregator", ["localhost"])
    of_authority = authority.certificate.read_bytes()
    right = {key: text.encode() or of_authority for key, text in FILES.items()}
    right["listen.tls.cert_file"] = pair.certificate.read_bytes()
    right["listen.tls.key_file"] = pair.key.read_bytes()
    return right


@pytest.fixture
def site(tmp_path: Path, contents: dict[str, bytes]) -> Path:
    """The configuration, with the right content in each file."""
    for key, content in contents.items():
        (tmp_path / key).write_bytes(content)
    return written(tmp_path, TEXT)


def test_the_site_of_these_tests_is_sound(site: Path) -> None:
    done = config_check(site)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_key_moves_no_cursor(tmp_path: Path) -> None:
    done = config_check(written(tmp_path, '"a\\e[2J": x\n'))
    assert ": a?[2J: unknown key; expected" in done.stderr
    assert "\x1b" not in done.stderr


def _directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _byte_of_another_encoding(file: Path) -> None:
    file.write_bytes(b"\xff" + file.read_bytes())


GARBAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "directory": _directory,
    "empty": lambda file: file.write_bytes(b""),
    "blank": lambda file: file.write_bytes(b" \r\n\n"),
    "binary": lambda file: file.write_bytes(bytes(range(256)) * 40),
    "cut": lambda file: file.write_bytes(file.read_bytes()[: len(file.read_bytes()) // 2]),
    "another encoding": _byte_of_another_encoding,
    "nul": lambda file: file.write_bytes(b"\0" + file.read_bytes()),
    "long": lambda file: file.write_bytes(SECRET.encode() * 100_000),
    "huge": lambda file: file.write_bytes(b"a" * (33 << 20)),
}
#: Garbage that can't be distinguished from what is expected: a shared secret may have any bytes,
#: and half of a secret is one.
TAKEN = {
    *((key, "cut") for key in FILES if key.endswith(SECRETS)),
    *((key, "another encoding") for key in FILES if key.endswith(".secret_file")),
    *((key, "nul") for key in FILES if key.endswith(".secret_file")),
}
#: Of the listener's files the first that can't be used is named.
GROUPS = {
    "key": ["listen.tls.key_file"],
    "client CA": ["listen.tls.client_ca_file"],
    "shared secrets": [key for key in FILES if key.endswith(".secret_file")],
    "other secrets": [
        key for key in FILES if key.endswith(SECRETS) and not key.endswith(".secret_file")
    ],
    "others": [
        "listen.tls.cert_file",
        *("access.tokens_file", "access.oidc.ca_file"),
        "alerts.receivers[2].alertmanager.http.ca_file",
    ],
}


@pytest.mark.parametrize("what", GARBAGE)
@pytest.mark.parametrize("group", GROUPS)
def test_garbage_is_refused_by_key_file_and_what_is_expected(
    site: Path, group: str, what: str
) -> None:
    for key in GROUPS[group]:
        GARBAGE[what](site.parent / key)
    done = config_check(site)
    expected = [key for key in GROUPS[group] if (key, what) not in TAKEN]
    assert done.returncode == (2 if expected else 0), done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(expected), done.stderr
    for line in lines:
        assert line.startswith(f"{site}:")
        assert "; expected " in line
    for key in expected:
        section = "listen.tls" if key.startswith("listen.tls") else key.removesuffix(".ca_file")
        assert [line for line in lines if f": {section}" in line and str(site.parent / key) in line]
    assert SECRET not in done.stderr
    assert "0xff" not in done.stderr
    assert "than 0 MiB" not in done.stderr
