"""Programs of the host below another root: how a chroot that fails is told from its program."""

import errno
import os
from pathlib import Path

import pytest

from nodeagent.active_tests.host import HostPrograms
from nodeagent.sources.command import Outcome
from tests.support.present import of_type

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can chroot"),
]


async def run(root: Path, *command: str) -> Outcome:
    return of_type(await HostPrograms(root, ["/bin"]).run(command, limit=30), Outcome)


async def test_a_root_that_is_not_there_is_no_exit_of_the_program(tmp_path: Path) -> None:
    ended = await run(tmp_path / "absent", "/bin/tool")
    assert ended.exit is None
    assert "cannot change root directory" in ended.broken


async def test_a_program_that_is_not_there_or_may_not_run_has_the_error_of_its_start(
    tmp_path: Path,
) -> None:
    (tmp_path / "no-program").touch()
    for name, number in (("/absent", errno.ENOENT), ("/no-program", errno.EACCES)):
        ended = await run(tmp_path, name)
        assert (ended.exit, ended.errno) == (None, number)


async def test_a_programs_own_exit_code_stays(tmp_path: Path) -> None:
    # A view that differs from "/" as a text has its programs run by chroot.
    (tmp_path / "root").symlink_to("/")
    for code in (0, 125, 126, 127):
        ended = await run(tmp_path / "root", "/bin/sh", "-c", f"echo tool: no >&2; exit {code}")
        assert (ended.exit, ended.broken, ended.errno) == (code, "", None)
