"""A plug-in of pytest: several processes with the same tests run each file of tests in one of them.

    pytest -p tests.claims --claims FOLDER tests/kube tests/e2e

A process claims a file when it has finished its last one, so the processes end at nearly the same
time whatever each file takes. A claim is a file in FOLDER, which must be empty at the start. Tests
of one file run in one process and in their order, as fixtures of a module expect. Each process has
its own session fixtures, such as the control plane.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

#: Claimed first, in this order: a long file that is begun last keeps one process busy alone.
LONG_FILES: Sequence[str] = (
    "tests/e2e/test_agent_repairs.py",
    "tests/e2e/test_shards.py",
    "tests/e2e/test_bursts.py",
    "tests/kube/test_kube_drain_blocked.py",
    "tests/e2e/test_restarts_and_modes.py",
    "tests/e2e/test_demo.py",
    "tests/kube/test_kube_drain_load.py",
    "tests/e2e/test_faulty_api_server.py",
    "tests/e2e/test_held_actions.py",
    "tests/e2e/test_etcd_stopped.py",
    "tests/aggregator/test_hostile_process.py",
    "tests/web/test_browser.py",
    "tests/aggregator/test_controller_state_machine.py",
    "tests/aggregator/test_hostile_agent.py",
    "tests/aggregator/test_fleet_bench.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--claims", metavar="FOLDER", type=Path, help="share the files of tests")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file that another process has claimed is not collected.

    The collection of all files takes 10 s of a processor, and later runs need few of them.
    """
    folder: Path | None = config.getoption("claims")
    if folder is None or not collection_path.is_relative_to(config.rootpath):
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    return _claim_of(folder, path).exists() or None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """As pytest's own loop, over the files that this process claims."""
    folder: Path | None = session.config.getoption("claims")
    if folder is None or session.config.option.collectonly or session.testsfailed:
        return None  # pytest's own loop reports errors of the collection
    claimed = _claimed(session.items, folder)
    item = next(claimed, None)
    while item is not None:
        following = next(claimed, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def _claimed(items: Sequence[pytest.Item], folder: Path) -> Iterator[pytest.Item]:
    """The tests of each file that no other process has claimed."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    for path in sorted(files, key=_rank):
        if _claim(folder, path):
            yield from files[path]


def _rank(path: str) -> int:
    return LONG_FILES.index(path) if path in LONG_FILES else len(LONG_FILES)


def _claim_of(folder: Path, path: str) -> Path:
    return folder / f"{path.replace('/', ':')}.claim"


def _claim(folder: Path, path: str) -> bool:
    try:
        os.close(os.open(_claim_of(folder, path), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
