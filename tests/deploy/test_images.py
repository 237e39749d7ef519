"""The Dockerfiles' text. Their build stages run in tests/packages/test_build_stages.py."""

import pytest

from tests.deploy import dockerfile
from tests.deploy.dockerfile import PROGRAMS, dockerfile_of
from tests.deploy.manifests import ROOT, pod_spec


@pytest.mark.parametrize("program", PROGRAMS)
def test_whatever_is_copied_exists_and_is_sent(program: str) -> None:
    ignore = dockerfile_of(program).with_name(f"Dockerfile.{program}.dockerignore")
    pairs = dockerfile.copied(dockerfile.read(dockerfile_of(program)))
    assert pairs
    for source, _ in pairs:
        assert (ROOT / source).exists(), source
        assert dockerfile.is_sent(source, ignore), source
    for other in (".git", ".venv", "tests", "docs/install.md", "nodeagent/__pycache__"):
        assert not dockerfile.is_sent(other, ignore), other


@pytest.mark.parametrize("program", PROGRAMS)
def test_packages_come_by_hash_and_nothing_is_compiled_by_a_c_compiler(program: str) -> None:
    steps = dockerfile.read(dockerfile_of(program))
    runs = [step.text for step in steps if step.instruction == "RUN"]
    installs = [part for text in runs for part in text.split("&&") if " install " in part]
    assert installs
    for install in installs:
        assert (
            "--require-hashes --" in install
            or "--require-hashes -r" in install
            or ("--no-deps /src/dist/" in install)
        ), install
        assert "--only-binary :all:" in install or "--no-deps /src/dist/" in install
    assert not any("apt-get" in text for text in runs)


def test_the_aggregators_image_and_pod_agree_on_who_it_runs_as() -> None:
    steps = dockerfile.read(dockerfile_of("aggregator"))
    [user] = [step.text for step in steps if step.instruction == "USER"]
    context = pod_spec("StatefulSet", "sickbay-aggregator")["securityContext"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert context["runAsNonRoot"] is True
