"""The aggregator reports its own certificate if others refuse it, and not only they do."""

import asyncio
import datetime as dt
import logging
import re
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from aggregator.ingest.stats import IngestStats
from aggregator.ingest.tls import CertificateFiles
from aggregator.web.tls import Certificate
from tests.controlplane.pki import KeyPair
from tests.support.aggregator_program import AGGREGATOR, AGGREGATOR_COMMANDS
from tests.support.fork_server import run_program, start_program
from tests.support.ingest import Clock, site
from tests.support.pki import Authority
from tests.support.waiting import until

EXPIRED = dt.timedelta(minutes=-1)
DAY = 86_400


def put(new: KeyPair, old: KeyPair) -> None:
    """Replaces the files, as a Secret rotates."""
    new.key.replace(old.key)
    new.certificate.replace(old.certificate)


async def test_a_renewed_certificate_that_has_expired_is_not_served_while_the_old_one_is_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(folder=tmp_path) as running:
        assert running.authority is not None
        served = KeyPair(tmp_path / "server.crt", tmp_path / "server.key")
        put(running.authority.server("stale", ["localhost"], lasts=EXPIRED), served)
        running.clock.ahead += 2
        async with running.agent() as agent:
            await agent.attend()
        assert running.stats.certificate_troubles == 1
        assert "server.crt expired at " in caplog.records[-1].__dict__["error"]
        assert running.server.certificate_trouble() == ""


async def test_a_certificate_that_expires_is_said_once_until_another_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        return [r.message for r in caplog.records if r.levelno >= logging.ERROR]

    async with site(folder=tmp_path) as running:
        assert running.authority is not None
        assert running.server.certificate_trouble() == ""
        running.clock.ahead += 3 * DAY
        assert "server.crt expired at " in running.server.certificate_trouble()
        await until(said)
        # No agent connects: the file is read again without one.
        lasts = dt.timedelta(days=5)
        renewed = running.authority.server("renewed", ["localhost"], lasts=lasts)
        put(renewed, KeyPair(tmp_path / "server.crt", tmp_path / "server.key"))
        running.clock.ahead += 2
        await until(lambda: not running.server.certificate_trouble())
        running.clock.ahead -= 3 * DAY
        async with running.agent() as agent:  # an agent whose own clock was never ahead
            await agent.attend()
    assert said() == ["agents and other replicas turn away"]


async def test_the_page_keeps_a_good_certificate_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, clock = Authority.create(tmp_path), Clock()
    served = authority.server("server", ["localhost"])
    certificate = Certificate(served.certificate, served.key, wall=clock.wall)

    async def shown() -> str:
        server = await asyncio.start_server(
            lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=certificate.context
        )
        async with server:
            return await asyncio.to_thread(
                ssl.get_server_certificate, server.sockets[0].getsockname()
            )

    first = await shown()
    put(authority.server("stale", ["localhost"], lasts=EXPIRED), served)
    certificate.reload_if_changed()
    assert await shown() == first
    authority.server("half", ["localhost"]).certificate.replace(served.certificate)
    certificate.reload_if_changed()
    certificate.reload_if_changed()
    assert await shown() == first, "its key is not there"
    assert len(caplog.records) == 1, "it is logged once"
    put(authority.server("renewed", ["localhost"]), served)
    certificate.reload_if_changed()
    assert await shown() == served.certificate.read_text() != first


def test_a_certificate_that_the_replicas_authorities_do_not_cover_is_said(tmp_path: Path) -> None:
    ours, other = Authority.create(tmp_path / "ours"), Authority.create(tmp_path / "other")
    pair = ours.server("server", ["localhost"])
    verified_by = tmp_path / "ca.crt"
    clock = Clock()
    files = CertificateFiles(
        pair.certificate,
        pair.key,
        None,
        verified_by=verified_by,
        stats=IngestStats(),
        now=clock.now,
        wall=clock.wall,
    )

    def trouble(text: bytes) -> str:
        verified_by.write_bytes(text)
        return files.trouble()

    files.credentials(require_client_certificate=False)
    mine, theirs = ours.certificate.read_bytes(), other.certificate.read_bytes()
    refused = f"{pair.certificate} is signed by none of replicas.ca_file {verified_by}"
    assert trouble(theirs) == refused
    assert trouble(theirs + mine) == ""
    assert trouble(pair.certificate.read_bytes()) == "", "it is its own authority"
    assert trouble(theirs) == refused
    put(other.server("server", ["localhost"]), pair)
    clock.ahead += 2
    assert files.trouble() == ""


def test_config_check_compares_the_certificate_with_the_replicas_authorities(
    tmp_path: Path,
) -> None:
    ours, other = Authority.create(tmp_path / "ours"), Authority.create(tmp_path / "other")
    pair = ours.server("server", ["one.test"])
    (tmp_path / "token").write_text("x")
    file = tmp_path / "aggregator.yaml"
    file.write_text(
        f"""listen: {{tls: {{cert_file: {pair.certificate}, key_file: {pair.key}}}}}
replicas: {{address: "one.test:1", token_file: token, ca_file: {other.certificate}}}
"""
    )
    done = run_program(AGGREGATOR_COMMANDS, ["config", "check", file], limit=300)
    assert done.returncode == 2
    said = (
        f"{file}:1: listen.tls.cert_file: {pair.certificate} is signed by none of replicas.ca_file "
    )
    assert done.stderr.startswith(said)


async def test_an_aggregator_with_an_expired_certificate_is_not_ready_and_says_why(
    tmp_path: Path,
) -> None:
    authority = Authority.create(tmp_path / "pki")
    pair = authority.server("aggregator", ["localhost"], lasts=EXPIRED)
    file = tmp_path / "aggregator.yaml"
    file.write_text(
        f"""listen:
  grpc: "127.0.0.1:0"
  web: "127.0.0.1:0"
  tls: {{cert_file: {pair.certificate}, key_file: {pair.key}}}
cluster: {{kind: local, local: {{database: {tmp_path}/cluster.db}}}}
identity: {{kind: insecure-trust-hello}}
history: {{database: "sqlite:///{tmp_path}/history.db"}}
alerts: {{outbox: {tmp_path}/outbox.db}}
"""
    )
    checked = run_program(AGGREGATOR_COMMANDS, ["config", "check", file], limit=300)
    [said] = checked.stderr.splitlines()
    assert checked.returncode == 2
    assert said.startswith(f"{file}:4: listen.tls.cert_file: {pair.certificate} expired at 20")

    log = tmp_path / "log"
    with log.open("wb") as out:
        process = start_program(AGGREGATOR, ["--config", file], output=out)
    try:
        served = re.compile(r'"the page is served",.* "address": "127.0.0.1:(\d+)"')
        await until(lambda: served.search(log.read_text()), log.read_text)
        [port] = map(int, served.findall(log.read_text()))
        why = f"agents and other replicas turn away: {pair.certificate} expired at 20"
        await until(lambda: why in _readyz(port), lambda: (_readyz(port), log.read_text()))
        await until(lambda: '"agents and other replicas turn away"' in log.read_text())
        put(authority.server("renewed", ["localhost"]), pair)
        await until(lambda: _readyz(port) == "ready\n", lambda: _readyz(port))
    finally:
        process.terminate()
        process.wait()
    assert "Traceback" not in log.read_text()


def _readyz(port: int) -> str:
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(
            f"https://127.0.0.1:{port}/readyz", context=unchecked, timeout=300
        ) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refusal:
        return refusal.read().decode()
    except OSError as error:
        return f"nobody answers: {error}"
