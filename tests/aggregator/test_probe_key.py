"""The secret by which probes are assigned to nodes: kept, and made again only where it must be."""

import logging
import stat
from pathlib import Path

import pytest

from aggregator.ingest.probe_key import SIZE, keep_probe_key, load_probe_key


def test_it_is_made_once_for_this_user_alone_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "probe-key"
    made = load_probe_key(file)
    assert len(made) == SIZE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert load_probe_key(file) == made
    assert load_probe_key(tmp_path / "another") != made
    assert {one.name for one in tmp_path.iterdir()} == {"another", "probe-key"}


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 100])
def test_one_that_is_damaged_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "probe-key"
    file.write_bytes(damage)
    (tmp_path / "probe-key.new").write_bytes(b"left by a crash")
    made = load_probe_key(file)
    assert len(made) == SIZE
    assert file.read_bytes() == made


def test_where_it_cannot_be_kept_it_is_made_for_the_process_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "no-folder" / "probe-key"
    with caplog.at_level(logging.WARNING):
        one, other = load_probe_key(file), load_probe_key(file)
    assert len(one) == len(other) == SIZE
    assert one != other
    assert "after a restart agents probe other nodes" in caplog.text


def test_a_folder_in_its_place_is_said_and_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "probe-key"
    file.mkdir()
    with caplog.at_level(logging.WARNING):
        assert len(load_probe_key(file)) == SIZE
    assert file.is_dir()
    assert "can't be kept" in caplog.text


def test_without_a_folder_each_process_has_its_own() -> None:
    assert load_probe_key(None) != load_probe_key(None)


def test_a_gateway_keeps_the_controllers_and_has_it_when_it_takes_over(tmp_path: Path) -> None:
    gateways, controllers = tmp_path / "a", tmp_path / "b"
    load_probe_key(gateways)
    made = load_probe_key(controllers)
    keep_probe_key(gateways, made)
    assert load_probe_key(gateways) == made
    keep_probe_key(gateways, b"of another size")
    keep_probe_key(None, made)
    assert load_probe_key(gateways) == made
    assert stat.S_IMODE(gateways.stat().st_mode) == 0o600
