"""A kubeconfig that can't be used is refused in words, before the library reads or waits."""

import base64
import errno
import json
import os
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aggregator.cluster.kubernetes.credentials import CredentialSources, load
from aggregator.cluster.kubernetes.kubeconfig_check import KubeconfigError, choose
from aggregator.cluster.kubernetes.kubeconfig_reader import KubeconfigSettings
from aggregator.cluster.port import Refused
from aggregator.daemon_cli.main import main
from tests.support.imported import imported_by
from tests.support.pki import Authority, encrypted
from tests.support.text_files import text_file

Change = Callable[[dict[str, Any]], object]


def sound() -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}, {"name": "spare", "user": None}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def written(folder: Path, change: Change = lambda _: None) -> Path:
    data = sound()
    change(data)
    return text_file(folder / "config", json.dumps(data))


def said_of(paths: object, context: str = "") -> str:
    with pytest.raises(KubeconfigError) as refused:
        choose(str(paths), context)
    return str(refused.value)


async def test_what_is_sound_is_read(tmp_path: Path) -> None:
    assert (
        await load(CredentialSources(str(written(tmp_path)), "", {}))
    ).url == "https://127.0.0.1:1"


_LOADS = """
import asyncio, sys
from aggregator.cluster.kubernetes.credentials import CredentialSources, load
access = asyncio.run(load(CredentialSources(sys.argv[1], "", {})))
print(access.url, asyncio.run(access.authorization()))
"""


def test_a_token_is_read_by_a_program_of_its_own(tmp_path: Path) -> None:
    _, said = imported_by(_LOADS, str(written(tmp_path)))
    assert said == ["https://127.0.0.1:1", "Bearer", "t"]


async def test_a_tokens_file_is_read_next_to_the_kubeconfig(tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        data["users"][0]["user"] = {"tokenFile": "token"}

    (tmp_path / "token").write_text("from-file\n")
    found = await load(CredentialSources(str(written(tmp_path, change)), "", {}))
    assert await found.authorization() == "Bearer from-file"


async def test_a_name_and_a_password_are_basic_authentication(tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        data["users"][0]["user"] = {"username": "me", "password": "hunter2"}

    found = await load(CredentialSources(str(written(tmp_path, change)), "", {}))
    assert await found.authorization() == "Basic bWU6aHVudGVyMg=="


async def test_the_other_keys_of_a_cluster_are_read(tmp_path: Path) -> None:
    more = {"insecure-skip-tls-verify": True, "tls-server-name": "k", "proxy-url": "http://p:1"}

    def change(data: dict[str, Any]) -> None:
        data["clusters"][0]["cluster"] |= more

    found = await load(CredentialSources(str(written(tmp_path, change)), "", {}))
    assert (found.server_hostname, found.proxy) == ("k", "http://p:1")
    assert found.tls is not None
    assert found.tls.verify_mode is ssl.CERT_NONE


def test_an_auth_provider_is_refused_with_what_replaces_it(tmp_path: Path) -> None:
    said = said_of(written(tmp_path, _with({"name": "oidc"}, "users", 0, "user", "auth-provider")))
    assert 'auth-provider of "u" is not supported; expected exec, with a plugin' in said


V1 = "client.authentication.k8s.io/v1"


@pytest.mark.parametrize(
    ("call", "answer", "says"),
    [
        ({"command": "x"}, "", "Expected key apiVersion in exec"),
        ({"apiVersion": V1, "args": 3}, "", "args is no list"),
        ({"apiVersion": V1, "env": [3]}, "", "env is no list of name and value"),
        ({"apiVersion": V1}, "{", "failed to decode process output"),
        ({"apiVersion": V1}, 100_000 * "[", "failed to decode process output: it is nested too"),
        ({"apiVersion": V1}, "[]", "the plugin's answer has no status"),
        ({"apiVersion": V1}, '{"apiVersion": "v2", "status": {}}', "API version is v2; expected"),
        ({"apiVersion": V1}, f'{{"apiVersion": "{V1}", "status": {{}}}}', "neither a token nor"),
        (
            {"apiVersion": V1},
            f'{{"apiVersion": "{V1}", "status": {{"token": "t", "expirationTimestamp": "soon"}}}}',
            "expirationTimestamp is no time",
        ),
    ],
)
async def test_a_plugin_that_cant_be_used_is_named_with_its_file_and_user(
    tmp_path: Path, call: dict[str, Any], answer: str, says: str
) -> None:
    plugin = text_file(tmp_path / "plugin", f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    plugin.chmod(0o755)

    def change(data: dict[str, Any]) -> None:
        data["users"][0]["user"] = {"exec": {"command": str(plugin)} | call}

    path = written(tmp_path, change)
    with pytest.raises(Refused) as refused:
        await load(CredentialSources(str(path), "", {}))
    assert f'the kubeconfig {path} can\'t be used: exec of "u": ' in str(refused.value)
    assert says in str(refused.value)


async def test_a_plugins_certificate_is_used_and_its_token_renewed_before_its_end(
    tmp_path: Path, pem: dict[str, bytes]
) -> None:
    status = {
        "clientCertificateData": pem["certificate"].decode(),
        "clientKeyData": pem["key"].decode(),
    }
    answer = text_file(tmp_path / "answer", json.dumps({"apiVersion": V1, "status": status}))

    def change(data: dict[str, Any]) -> None:
        call = {"apiVersion": V1, "command": "cat", "args": [str(answer)]}
        data["users"][0]["user"] = {"exec": call}

    path = str(written(tmp_path, change))
    found = await load(CredentialSources(path, "", {}))
    assert found.client_pair is not None
    given = Path(found.client_pair[0]).read_bytes()  # noqa: ASYNC240 - a file of its own
    assert given == pem["certificate"]
    settings = KubeconfigSettings(path, "")
    for token, end in (("first", "2020-01-01T00:00:00Z"), ("second", "2999-01-01T00:00:00Z")):
        status = {"token": token, "expirationTimestamp": end}
        answer.write_text(json.dumps({"apiVersion": V1, "status": status}))
        await (settings.renew() if settings.expires else settings.authenticate())
        assert await settings.authorization() == f"Bearer {token}"
    answer.write_text("{")
    await settings.renew()  # it is valid for long: the plugin is not run


def test_a_proxy_in_plaintext_needs_no_user(tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        data["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:8001"
        del data["contexts"][0]["context"]["user"]

    choose(str(written(tmp_path, change)), "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is empty; expected clusters, contexts and users, as kubectl"),
        ("# later\n", "it is empty; expected"),
        ("{", "line 1: expected the node content, but found '<stream end>'; expected YAML"),
        ("[]", "it has no keys; expected clusters"),
        ("a: " + "[" * 3000, "it is no YAML; expected clusters"),
        ("a: !!bool x", "it is no YAML; expected clusters"),
        ("a: !!timestamp x", "it is no YAML; expected clusters"),
        ("\xff", "it is no YAML; expected clusters"),
        ("root:x:0:0:root", "it has no keys; expected clusters"),
        ("current-context: x", "it has no contexts; expected clusters"),
        ("clusters: 3", "its clusters are no list; expected a list, such as - name: x"),
        ("users: [{user: {}}]", "number 1 of its users has no name; expected name, with text"),
        ("contexts: [1]", "number 1 of its contexts has no name"),
    ],
)
def test_what_holds_nothing_is_said_to(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config"
    path.write_text(text, "latin-1")
    assert f"the kubeconfig {path} can't be used: {says}" in said_of(path)


def _without(*keys: str | int) -> Change:
    def change(data: Any) -> None:
        for key in keys[:-1]:
            data = data[key]
        del data[keys[-1]]

    return change


def _with(value: object, *keys: str | int) -> Change:
    def change(data: Any) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_without("current-context"), "it has no current context; expected current-context, wi"),
        (_with("prod", "current-context"), 'it has no context "prod"; expected one of: x'),
        (_without("clusters"), "it has no clusters; expected clusters, contexts and users"),
        (_without("users"), "it has no users; expected clusters, contexts and users"),
        (_with(None, "contexts", 0, "context"), 'its context "x" holds nothing; expected context'),
        (_without("contexts", 0, "context", "cluster"), 'its context "x" has no cluster; expected'),
        (_without("contexts", 0, "context", "user"), 'its context "x" has no user; expected the n'),
        (
            _with("d", "contexts", 0, "context", "cluster"),
            'it has no cluster "d", which its context "x" names; expected one of: c',
        ),
        (
            _with("v", "contexts", 0, "context", "user"),
            'it has no user "v", which its context "x" names; expected one of: u, spare',
        ),
        (_with("spare", "contexts", 0, "context", "user"), 'its user "spare" holds nothing; expe'),
        (_without("clusters", 0, "cluster", "server"), 'its cluster "c" has no server; expected h'),
        (_with(7, "users", 0, "user", "client-key"), 'client-key of "u" is no text; expected a fi'),
        *(
            (_with(empty, section, 0, section[:-1], key), f'{key} of "{name}" is empty; expected a')
            for empty in ("", None)
            for section, name, key in (
                ("clusters", "c", "certificate-authority"),
                ("users", "u", "client-certificate"),
                ("users", "u", "client-key"),
            )
        ),
        (
            _with({"tokenFile": ""}, "users", 0, "user"),
            'tokenFile of "u" is empty; expected a file',
        ),
        (
            _with(None, "users", 0, "user", "token"),
            'token of "u" is empty; expected a value, or no',
        ),
        (
            _with(None, "users", 0, "user", "exec"),
            'exec of "u" is empty; expected a value, or no s',
        ),
        (_with(None, "clusters", 0, "cluster", "proxy-url"), 'proxy-url of "c" is empty; expected'),
        (
            _with("https://h:70000", "clusters", 0, "cluster", "server"),
            'its cluster "c" has a server that is no address; expected https://HOST:PORT',
        ),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, change: Change, says: str) -> None:
    path = written(tmp_path, change)
    assert f"the kubeconfig {path} can't be used: {says}" in said_of(path)


@pytest.mark.parametrize(
    ("key", "url", "says"),
    [
        (
            "server",
            "https://me:hunter2@127.0.0.1:1",
            "has a user in its server; expected https://HOST:PORT, and its name and password",
        ),
        ("server", "https://me:hunter2@", "has a server that is no address; expected https://HOST"),
        ("proxy-url", "me:hunter2@h:1", "has a proxy-url that can't be used; expected http://HO"),
        ("proxy-url", "http://me:hunter2@h:70000", "has a proxy-url that can't be used; expected"),
        ("proxy-url", "socks5://me:hunter2@h:1", "has a proxy-url that can't be used; expected ht"),
        ("proxy-url", ["hunter2"], "has a proxy-url that can't be used; expected http://HOST:PORT"),
    ],
)
def test_an_address_that_is_refused_is_not_shown_as_it_may_hold_a_password(
    tmp_path: Path, key: str, url: object, says: str
) -> None:
    said = said_of(written(tmp_path, _with(url, "clusters", 0, "cluster", key)))
    assert f'its cluster "c" {says}' in said
    assert "hunter2" not in said


@pytest.mark.parametrize("token", ["*hunter2", "!hunter2 x"])
def test_a_token_that_yaml_takes_for_something_else_is_not_quoted(
    tmp_path: Path, token: str
) -> None:
    path = text_file(tmp_path / "config", f"users:\n- {{name: u, user: {{token: {token} }}}}\n")
    said = said_of(path)
    assert "can't be used: line 2: " in said
    assert "hunter2" not in said


def test_an_empty_file_among_several_is_named(tmp_path: Path) -> None:
    (tmp_path / "more").touch()
    paths = f"{written(tmp_path)}:{tmp_path / 'more'}:{tmp_path / 'gone'}"
    assert f"the kubeconfig {tmp_path / 'more'} can't be used: it is empty" in said_of(paths)


@pytest.mark.parametrize(
    ("key", "section"),
    [
        ("tokenFile", "users"),
        ("client-certificate", "users"),
        ("client-key", "users"),
        ("certificate-authority", "clusters"),
    ],
)
async def test_no_file_that_it_names_is_waited_for(tmp_path: Path, key: str, section: str) -> None:
    def change(data: dict[str, Any]) -> None:
        data["users"][0]["user"].pop("token")
        data[section][0][section[:-1]][key] = "beside"

    sources = CredentialSources(str(written(tmp_path, change)), "", {})
    beside = tmp_path / "beside"
    os.mkfifo(beside)
    with pytest.raises(Refused, match=f"{key} of .*{beside} can't be read: it is a pipe and no"):
        await load(sources)
    beside.unlink()
    beside.symlink_to("/dev/zero")
    with pytest.raises(Refused, match="can't be read: it is a device and no regular file; expect"):
        await load(sources)
    beside.unlink()
    with pytest.raises(Refused, match="can't be read: No such file or directory; expected a read"):
        await load(sources)


def test_what_has_its_content_within_needs_no_file(tmp_path: Path) -> None:
    choose(str(written(tmp_path, _with("gone", "users", 0, "user", "tokenFile"))), "")


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A certificate, its key, the same key with a passphrase, and another's key."""
    authority = Authority.create(tmp_path_factory.mktemp("pki"))
    one, another = authority.server("one", ["a"]), authority.server("another", ["b"])
    key = one.key.read_bytes()
    return {
        "certificate": one.certificate.read_bytes(),
        "key": key,
        "encrypted": encrypted(one.key),
        "another": another.key.read_bytes(),
        "both": one.certificate.read_bytes() + key,
        "junk": b"\xff junk",
        "cut": one.certificate.read_bytes()[:200],
    }


_NO_CERTIFICATE = "holds no certificate; expected PEM, with -----BEGIN and -----END"
_NO_KEY = "holds no private key; expected PEM, with -----BEGIN and -----END"


@pytest.mark.parametrize("end", ["", "-data"])
@pytest.mark.parametrize(
    ("given", "wrong", "says"),
    [
        ({"certificate-authority": "junk"}, "certificate-authority", _NO_CERTIFICATE),
        ({"certificate-authority": "cut"}, "certificate-authority", _NO_CERTIFICATE),
        ({"certificate-authority": "key"}, "certificate-authority", _NO_CERTIFICATE),
        (
            {"client-certificate": "junk", "client-key": "key"},
            "client-certificate",
            _NO_CERTIFICATE,
        ),
        ({"client-certificate": "certificate", "client-key": "junk"}, "client-key", _NO_KEY),
        (
            {"client-certificate": "certificate", "client-key": "another"},
            "client-key",
            "is not the key of its certificate; expected the two that belong together",
        ),
        (
            {"client-certificate": "certificate", "client-key": "encrypted"},
            "client-key",
            "is encrypted; expected a private key without a passphrase",
        ),
        (
            {"client-certificate": "certificate"},
            "client-certificate",
            "holds no private key for the certificate; expected client-key with one",
        ),
    ],
)
async def test_what_is_no_pem_or_does_not_belong_together_is_said_of_its_key(
    tmp_path: Path, pem: dict[str, bytes], given: dict[str, str], wrong: str, says: str, end: str
) -> None:
    """The error names the faulty one of them, and not in the library's words."""
    path = written(tmp_path, _holding(tmp_path, {one: pem[given[one]] for one in given}, end))
    where = f'{wrong}{end} of "{"c" if "authority" in wrong else "u"}"'
    file = "" if end else f": {tmp_path / wrong}"
    if end and "PEM" in says:
        says += ", all of it in base64"
    assert said_of(path) == f"the kubeconfig {path} can't be used: {where}{file} {says}"


@pytest.mark.parametrize("end", ["", "-data"])
@pytest.mark.parametrize(
    "given",
    [
        {"client-certificate": "both"},
        {"client-certificate": "certificate", "client-key": "key"},
        {"certificate-authority": "certificate"},
        {"client-key": "junk"},
    ],
)
async def test_certificates_that_the_library_takes_are_not_refused(
    tmp_path: Path, pem: dict[str, bytes], given: dict[str, str], end: str
) -> None:
    """The last one is the key of no certificate, and is never read."""
    path = written(tmp_path, _holding(tmp_path, {one: pem[given[one]] for one in given}, end))
    assert (await load(CredentialSources(str(path), "", {}))).tls is not None


def _holding(folder: Path, contents: dict[str, bytes], end: str) -> Change:
    """A kubeconfig with these in itself (``end`` is "-data") or in files beside it."""

    def change(data: dict[str, Any]) -> None:
        for key, content in contents.items():
            section = "clusters" if "authority" in key else "users"
            (folder / key).write_bytes(content)
            data[section][0][section[:-1]][key + end] = (
                base64.b64encode(content).decode() if end else key
            )

    return change


@pytest.mark.parametrize("value", [7, [1], "a", None])
def test_what_is_no_base64_is_said_to(tmp_path: Path, value: object) -> None:
    path = written(tmp_path, _with(value, "clusters", 0, "cluster", "certificate-authority-data"))
    text = 'certificate-authority-data of "c" is no base64; expected PEM, in base64'
    assert said_of(path) == f"the kubeconfig {path} can't be used: {text}"


def target_of(link: str) -> str:
    return str(Path(link).readlink())


async def test_a_key_of_a_kubeconfig_is_never_on_a_disk(
    tmp_path: Path, pem: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed removes no file; a container's whole disk may be read-only."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    pair = {"client-certificate": pem["certificate"], "client-key": pem["key"]}
    path = written(tmp_path, _holding(tmp_path, pair, "-data"))
    credentials = await load(CredentialSources(str(path), "", {}))
    assert credentials.client_pair is not None
    links = [target_of(file) for file in credentials.client_pair]
    assert all(link.startswith("/memfd:") for link in links), links


def test_where_no_file_can_be_made_that_is_said(
    tmp_path: Path, pem: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)

    monkeypatch.setattr(os, "memfd_create", refuse)
    authority = {"certificate-authority": pem["certificate"]}
    path = written(tmp_path, _holding(tmp_path, authority, "-data"))
    assert "Too many open files: 'sickbay'; expected a free file descriptor" in said_of(path)


def test_what_speaks_plaintext_needs_no_certificate_that_can_be_read(tmp_path: Path) -> None:
    """A kubeconfig that was made for a proxy may keep the rest."""

    def change(data: dict[str, Any]) -> None:
        data["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:8001"
        data["clusters"][0]["cluster"]["certificate-authority-data"] = "anVuaw=="
        data["users"][0]["user"]["client-certificate-data"] = "anVuaw=="
        data["users"][0]["user"]["client-key"] = ""

    choose(str(written(tmp_path, change)), "")


async def test_a_kubeconfig_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for paths in (f"{tmp_path}/pipe", f"{written(tmp_path)}:{tmp_path}/pipe"):
        with pytest.raises(Refused, match=f"{tmp_path}/pipe can't be used: it can't be read: it i"):
            await load(CredentialSources(paths, "", {}))


# -- sickbay-aggregator -----------------------------------------------------------------------

SETTINGS = "listen: {insecure_plaintext: true}\ncluster:\n  kubeconfig: kubeconfig\n"


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("words", [("run", "--config"), ("config", "check")])
def test_a_start_and_a_check_refuse_the_one_that_the_configuration_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    file = text_file(tmp_path / "aggregator.yaml", SETTINGS)
    (tmp_path / "kubeconfig").touch()
    said = refusal(capsys, *words, str(file))
    where = f"{file}:3: cluster.kubeconfig: the kubeconfig {tmp_path}/kubeconfig can't be used"
    assert said.startswith(f"{where}: it is empty; expected clusters, contexts and users")


def test_a_start_refuses_the_one_that_the_environment_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = text_file(tmp_path / "aggregator.yaml", "listen: {insecure_plaintext: true}\n")
    (tmp_path / "kubeconfig").touch()
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/kubeconfig")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    said = refusal(capsys, "run", "--config", str(file))
    assert said.startswith(f"sickbay-aggregator: the kubeconfig {tmp_path}/kubeconfig can't be us")


def test_a_check_of_the_configuration_says_what_the_kubeconfig_lacks_and_asks_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = text_file(tmp_path / "aggregator.yaml", SETTINGS.replace(": kubeconfig", ": config"))
    ran = tmp_path / "ran"
    plugin = {"command": "touch", "args": [str(ran)]}
    written(tmp_path, _with({"exec": plugin}, "users", 0, "user"))
    with pytest.raises(SystemExit) as ended:
        main(["config", "check", str(file)])
    assert (ended.value.code, capsys.readouterr().err) == (0, "")
    written(tmp_path, _with({"exec": plugin, "client-key": "gone"}, "users", 0, "user"))
    said = refusal(capsys, "config", "check", str(file))
    where = f"{file}:3: cluster.kubeconfig: the kubeconfig {tmp_path}/config can't be used"
    text = f'client-key of "u": {tmp_path}/gone can\'t be read: No such file or directory'
    assert said == f"{where}: {text}; expected a readable file\n"
    assert not ran.exists()
