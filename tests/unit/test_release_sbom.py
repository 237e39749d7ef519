"""The bill of materials: what was installed, by which hash, and who requires it."""

import json
from pathlib import Path
from typing import Any

import pytest

from release import sbom
from release.requirements_file import RequirementsError, canonical, parse
from release.tree import ROOT

ONE, TWO, OTHER = "1" * 64, "2" * 64, "3" * 64
LOCKED = f"""
alpha==1.0 \\
    --hash=sha256:{ONE} \\
    --hash=sha256:{TWO}
    # via sickbay (pyproject.toml)
beta-two==2.0 ; python_full_version < '3.13' \\
    --hash=sha256:{TWO}
    # via
    #   -c requirements/aggregator.txt
    #   alpha
    #   sickbay (pyproject.toml)
unused==3.0 \\
    --hash=sha256:{OTHER}
    # via alpha
"""


def installed(name: str, version: str, digest: str, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "version": version, **metadata},
        "download_info": {"archive_info": {"hashes": {"sha256": digest}}},
    }


def bill(*items: dict[str, Any]) -> dict[str, Any]:
    return sbom.bill("sickbay-agent", "0.1.0", parse(LOCKED.splitlines()), {"install": list(items)})


ALPHA = installed("Alpha", "1.0", TWO, license="MIT")
BETA = installed("beta_two", "2.0", TWO, license_expression="Apache-2.0 OR MIT")


def test_it_lists_what_is_installed_with_the_hash_of_the_installed_file() -> None:
    made = bill(ALPHA, BETA)
    assert [one["purl"] for one in made["components"]] == [
        "pkg:pypi/alpha@1.0",
        "pkg:pypi/beta-two@2.0",
    ]
    assert made["components"][0]["hashes"] == [{"alg": "SHA-256", "content": TWO}]
    assert made["components"][0]["licenses"] == [{"license": {"name": "MIT"}}]
    assert made["components"][1]["licenses"] == [{"expression": "Apache-2.0 OR MIT"}]


def test_it_says_who_requires_whom() -> None:
    edges = {one["ref"]: one["dependsOn"] for one in bill(ALPHA, BETA)["dependencies"]}
    assert edges == {
        "sickbay-agent": ["pkg:pypi/alpha@1.0", "pkg:pypi/beta-two@2.0"],
        "pkg:pypi/alpha@1.0": ["pkg:pypi/beta-two@2.0"],
        "pkg:pypi/beta-two@2.0": [],
    }


def test_the_same_input_gives_the_same_bytes_and_another_input_another_number() -> None:
    assert json.dumps(bill(ALPHA, BETA)) == json.dumps(bill(BETA, ALPHA))
    assert bill(ALPHA)["serialNumber"] != bill(ALPHA, BETA)["serialNumber"]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (installed("alpha", "1.0", OTHER), "whose hash is not locked"),
        (installed("alpha", "1.1", ONE), "alpha 1.1 was installed and is locked as 1.0"),
        (installed("gamma", "1.0", ONE), "gamma 1.0 was installed and is not locked"),
    ],
)
def test_what_is_not_locked_is_refused(item: dict[str, Any], text: str) -> None:
    with pytest.raises(sbom.SbomError, match=text):
        bill(item)


def test_a_licence_is_a_name_and_never_its_whole_text() -> None:
    long = installed("alpha", "1.0", ONE, license="Permission is hereby granted\nfree of charge")
    assert "licenses" not in bill(long)["components"][0]
    classified = installed(
        "alpha", "1.0", ONE, classifier=["License :: OSI Approved :: BSD License"]
    )
    [licence] = bill(classified)["components"][0]["licenses"]
    assert licence == {"license": {"name": "BSD License"}}


@pytest.mark.parametrize("extra", ["agent", "aggregator", "cli"])
def test_the_trees_own_requirements_can_be_read(extra: str) -> None:
    text = (ROOT / "requirements" / f"{extra}.txt").read_text("utf-8")
    pins = parse(text.splitlines())
    assert len(pins) == text.count("==") - text.count("python_full_version ==")
    names = {pin.name for pin in pins}
    for pin in pins:
        assert pin.parents, pin.name
        assert pin.parents - {"sickbay"} <= names, pin.name


@pytest.mark.parametrize("text", ["alpha>=1", "-r other.txt", "alpha==1.0", "alpha==1\nbeta==2"])
def test_a_requirement_that_is_not_locked_by_hash_is_refused(text: str) -> None:
    with pytest.raises(RequirementsError):
        parse(text.splitlines())


def test_names_are_compared_as_an_index_compares_them() -> None:
    assert canonical("Beta_.Two") == "beta-two"


def test_a_file_that_is_missing_is_an_error_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sbom.main(["sickbay-agent", str(tmp_path / "none"), str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("sbom: ")
