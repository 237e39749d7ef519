"""A certificate of the aggregator's own that is not good now is said here, and not by those alone
who turn away."""

import asyncio
import datetime as dt
import logging
import re
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from aggregator.web.certificate import Certificate
from tests.controlplane.pki import KeyPair
from tests.support.ingest import Clock, site
from tests.support.pki import Authority
from tests.support.waiting import until

EXPIRED = dt.timedelta(minutes=-1)
DAY = 86_400


def put(new: KeyPair, old: KeyPair) -> None:
    """As a Secret rotates."""
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
        # Nobody comes for it: it is looked for all the same.
        lasts = dt.timedelta(days=5)
        renewed = running.authority.server("renewed", ["localhost"], lasts=lasts)
        put(renewed, KeyPair(tmp_path / "server.crt", tmp_path / "server.key"))
        running.clock.ahead += 2
        await until(lambda: not running.server.certificate_trouble())
        running.clock.ahead -= 3 * DAY
        async with running.agent() as agent:  # whose own clock was never ahead
            await agent.attend()
    assert said() == ["agents and other replicas turn away"]


async def test_the_page_keeps_a_good_certificate_too(tmp_path: Path) -> None:
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
    certificate.look()
    assert await shown() == first
    put(authority.server("renewed", ["localhost"]), served)
    certificate.look()
    assert await shown() == served.certificate.read_text() != first


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
    program = [sys.executable, "-c", "from aggregator.cli import main; main()"]
    checking = await asyncio.create_subprocess_exec(
        *program, "config", "check", str(file), stderr=asyncio.subprocess.PIPE
    )
    [said] = (await checking.communicate())[1].decode().splitlines()
    assert checking.returncode == 2
    assert said.startswith(f"{file}:4: listen.tls.cert_file: {pair.certificate} expired at 20")

    log = tmp_path / "log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *program, "run", "--config", str(file), stdout=out, stderr=out
        )
    try:
        served = re.compile(r'"the page is served", "address": "127.0.0.1:(\d+)"')
        await until(lambda: served.search(log.read_text()), log.read_text)
        [port] = map(int, served.findall(log.read_text()))
        why = f"agents and other replicas turn away: {pair.certificate} expired at 20"
        await until(lambda: why in _readyz(port), lambda: (_readyz(port), log.read_text()))
        await until(lambda: '"agents and other replicas turn away"' in log.read_text())
        put(authority.server("renewed", ["localhost"]), pair)
        await until(lambda: _readyz(port) == "ready\n", lambda: _readyz(port))
    finally:
        process.terminate()
        await process.wait()
    assert "Traceback" not in log.read_text()


def _readyz(port: int) -> str:
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(
            f"https://127.0.0.1:{port}/readyz", context=unchecked, timeout=30
        ) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refusal:
        return refusal.read().decode()
    except OSError as error:
        return f"nobody answers: {error}"
