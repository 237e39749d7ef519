"""What a test leaves open fails its module, and no test of another one."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LEAVING = """
import asyncio, socket

class Kept:
    def __init__(self):
        self.itself, self.socket = self, socket.socket()

async def later(): ...

def test_open(): Kept()

def test_not_awaited(): later()
"""
CLOSING = '''
import asyncio, pathlib, socket, ssl, threading
from tests.support.pki import Authority

def test_closed_by_its_owner(tmp_path):
    """The other end of a TLS connection does not answer its end."""
    authority = Authority.create(tmp_path)
    pair = authority.server("peer", ["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    over = threading.Event()

    def serve():
        with listener, listener.accept()[0] as taken:
            with context.wrap_socket(taken, server_side=True):
                over.wait()

    async def meet():
        trusting = ssl.create_default_context(cafile=authority.certificate)
        _, writer = await asyncio.open_connection(*listener.getsockname(), ssl=trusting)
        writer.close()

    listener = socket.create_server(("127.0.0.1", 0))
    peer = threading.Thread(target=serve)
    peer.start()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(meet())
    loop.close()
    over.set()
    peer.join()
'''


def test_what_was_not_closed_or_not_awaited_fails_its_module_at_its_end(tmp_path: Path) -> None:
    for name, text in (("left", LEAVING), ("next", "def test_next(): pass"), ("tls", CLOSING)):
        (tmp_path / f"test_{name}.py").write_text(text)
    (tmp_path / "conftest.py").write_text(
        "from tests.support import unraisable\n"
        "unraisable.close_what_is_being_closed()\n"
        "def pytest_configure(config): config.pluginmanager.register(unraisable.Unraisable())\n"
    )
    left_out = ("unraisableexception", "asyncio", "cacheprovider")
    command = [sys.executable, "-m", "pytest", "-W", "error", *(f"-pno:{one}" for one in left_out)]
    run = subprocess.run(
        [*command, "--rootdir", tmp_path, "-c", "/dev/null", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout
    assert "4 passed, 1 error" in run.stdout, run.stdout
    [summary] = [line for line in run.stdout.splitlines() if line.startswith("ERROR ")]
    # With CI in the environment pytest adds the message to the line.
    assert summary.split(" - ")[0].endswith("test_left.py"), summary
    assert "noticed in test_left.py::" in run.stdout
    assert "unclosed <socket.socket" in run.stdout
    assert "coroutine 'later' was never awaited" in run.stdout
