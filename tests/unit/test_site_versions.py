"""The order of the site's versions, and the files that lead to them."""

from pathlib import Path

import pytest

from release.site.versions import (
    VersionError,
    check,
    lead_from_sources,
    newest_first,
    publish,
)


def test_releases_are_ordered_by_number_and_before_their_candidates() -> None:
    given = ["dev", "0.9.0", "0.10.0", "0.10.0-rc.1", "0.10.0-rc.2", "1.0.0"]
    assert newest_first(given) == ["1.0.0", "0.10.0", "0.10.0-rc.2", "0.10.0-rc.1", "0.9.0", "dev"]


@pytest.mark.parametrize("version", ["", "..", "../x", ".hidden", "a/b", "a b", "-x", "x" * 65])
def test_a_version_that_is_no_name_of_a_folder_is_refused(version: str) -> None:
    with pytest.raises(VersionError, match="expected a version"):
        check(version)


@pytest.mark.parametrize("version", ["0.1.0", "1.0.0-rc.1", "dev", "main_2"])
def test_a_version_is_taken_as_it_is(version: str) -> None:
    assert check(version) == version


def test_the_root_leads_to_the_newest_of_the_versions_that_are_there(tmp_path: Path) -> None:
    for version in ("dev", "0.1.0"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "start.html").touch()
    (tmp_path / "not-a-version").mkdir()
    assert publish(tmp_path, "start.html") == ["0.1.0", "dev"]
    assert '"0.1.0/start.html"' in (tmp_path / "index.html").read_text()
    assert (tmp_path / "versions.js").read_text() == 'sickbayVersions(["0.1.0", "dev"]);\n'


def test_the_path_of_a_source_leads_to_its_page(tmp_path: Path) -> None:
    lead_from_sources(tmp_path, ["docs/limits"])
    text = (tmp_path / "docs" / "limits.md" / "index.html").read_text()
    assert 'location.replace("../limits.html" + location.hash)' in text
    assert 'content="0; url=../limits.html"' in text
