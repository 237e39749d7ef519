"""Which bytecode the agent's children run: only what is certainly of their source."""

import os
import py_compile
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest

from nodeagent.interpreter import bytecode_of, light_python
from nodeagent.sources.small_file import read_small, read_whole
from tests.support.text_files import text_file


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    bytecode_of.cache_clear()
    yield
    bytecode_of.cache_clear()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return text_file(tmp_path / "child.py", "print(1)\n")


def _compile(script: Path, mode: PycInvalidationMode) -> str:
    return str(py_compile.compile(str(script), invalidation_mode=mode, doraise=True))


def _runs(path: str) -> str:
    return subprocess.run(
        [*light_python(), path], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_script_without_bytecode_is_run_itself(script: Path) -> None:
    assert bytecode_of(str(script)) == str(script)


@pytest.mark.parametrize(
    "mode", [PycInvalidationMode.TIMESTAMP, PycInvalidationMode.UNCHECKED_HASH]
)
def test_bytecode_of_the_script_is_run(script: Path, mode: PycInvalidationMode) -> None:
    compiled = _compile(script, mode)
    assert bytecode_of(str(script)) == compiled == cache_from_source(str(script))
    assert _runs(compiled) == "1"


def test_bytecode_that_would_be_checked_by_its_hash_is_not_run(script: Path) -> None:
    _compile(script, PycInvalidationMode.CHECKED_HASH)
    assert bytecode_of(str(script)) == str(script)


@pytest.mark.parametrize("change", ["size", "time", "gone"])
def test_bytecode_of_another_source_is_not_run(script: Path, change: str) -> None:
    compiled = Path(_compile(script, PycInvalidationMode.TIMESTAMP))
    if change == "size":
        found = script.stat()
        script.write_text("print(12)\n")
        os.utime(script, ns=(found.st_atime_ns, found.st_mtime_ns))
    elif change == "time":
        os.utime(script, (1, 1))
    else:
        script.unlink()
    assert compiled.exists()
    assert bytecode_of(str(script)) == str(script)


@pytest.mark.parametrize("damage", [b"", b"\0" * 16, b"\xff" * 400])
def test_damaged_bytecode_is_not_run(script: Path, damage: bytes) -> None:
    Path(_compile(script, PycInvalidationMode.TIMESTAMP)).write_bytes(damage)
    assert bytecode_of(str(script)) == str(script)


def test_a_small_file_is_read_as_text_without_the_space_around_it(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_bytes(b"  live\xff \n")
    assert read_small(file) == "live\ufffd"
    assert read_small(str(file)) == "live\ufffd"


@pytest.mark.parametrize("size", [0, 10, 65_536, 200_000])
@pytest.mark.parametrize("most", [0, 5, 65_536, 100_000])
def test_a_file_is_read_whole_or_to_a_bound(tmp_path: Path, size: int, most: int) -> None:
    content = os.urandom(size)
    (tmp_path / "table").write_bytes(content)
    assert read_whole(tmp_path / "table", most) == (content[:most] if most else content)


def test_a_file_that_cannot_be_read_whole_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_whole(tmp_path / "table")


def test_at_most_4096_bytes_of_a_small_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_bytes(b"x" * 5000)
    assert read_small(file) == "x" * 4096


def test_what_can_not_be_read_has_no_text(tmp_path: Path) -> None:
    assert read_small(tmp_path / "missing") is None
    assert read_small(tmp_path) is None
