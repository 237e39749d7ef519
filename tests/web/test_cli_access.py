"""`sickbay --url` where the page asks who its reader is."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aggregator.access.gate import AccessGate
from aggregator.access.static_tokens import StaticTokens
from aggregator.web.access_guard import PageAccess
from tests.support.text_files import text_file
from tests.web.cli import in_process, sickbay
from tests.web.support import Hands, Served, running_clocks, serving, small_fleet

TOKEN = "v" * 24


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    (tmp_path / "tokens").write_text(f"{TOKEN},dashboards,viewer\n")
    tokens = StaticTokens(tmp_path / "tokens")
    access = PageAccess(AccessGate([tokens], tokens, anonymous=False))
    async with serving(small_fleet(Hands()), running_clocks(), access=access) as running:
        yield running


async def test_a_token_comes_from_a_file_or_the_environment(served: Served, tmp_path: Path) -> None:
    file = text_file(tmp_path / "token", f"{TOKEN}\n")
    by_file = await in_process("status", "--url", served.url, "--token-file", str(file))
    assert by_file.out.startswith("2 in quarantine"), by_file
    by_variable = await sickbay("status", "--url", served.url, SICKBAY_TOKEN=TOKEN)
    assert by_variable.out.startswith("2 in quarantine"), by_variable


async def test_without_a_token_the_answer_is_what_to_do(served: Served) -> None:
    done = await in_process("status", "--url", served.url)
    assert done.code == 1
    assert "you are not logged in" in done.err
    assert "--token-file FILE or SICKBAY_TOKEN" in done.err


async def test_a_token_is_not_sent_in_plaintext_to_another_machine(tmp_path: Path) -> None:
    file = text_file(tmp_path / "token", TOKEN)
    done = await in_process("status", "--url", "http://192.0.2.1:1", "--token-file", str(file))
    assert done.code == 2
    assert "expected https://" in done.err
    assert TOKEN not in done.err


@pytest.mark.parametrize("content", [None, "", "a\nb", "t\u00f6k"])
async def test_a_file_without_a_token_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    done = await in_process("status", "--url", "http://localhost:1", "--token-file", str(file))
    assert done.code == 2
    assert "--token-file" in done.err
    assert "Errno" not in done.err


async def test_a_token_may_come_from_a_pipe_and_from_no_device(served: Served) -> None:
    reading, writing = os.pipe()
    os.write(writing, TOKEN.encode())
    os.close(writing)
    where = ("status", "--url", served.url, "--token-file")
    piped = await in_process(*where, f"/dev/fd/{reading}")
    os.close(reading)
    assert piped.out.startswith("2 in quarantine"), piped
    endless = await in_process(*where, "/dev/null")  # as /dev/zero, which a broken read fills up
    assert endless.code == 2
    assert "/dev/null can't be read: it is a device and no regular file" in endless.err
