"""The images that `make images` builds: buildah builds them here on Debian's packages, runc runs
them. `make test-images` runs this file, and `make test` does not: it takes minutes.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from release import debian_base, images, tree
from tests.controlplane.waiting import wait_until
from tests.packages import environment
from tests.packages.image import Image, output

ROOT = tree.ROOT
#: Read by `make bench-install`.
FIGURES = ROOT / "build" / "bench" / "images.json"
NETWORK = Path("/etc/ssl/certs")
#: The published platform that is not this machine's.
FOREIGN = "linux/arm64" if os.uname().machine == "x86_64" else "linux/amd64"
AGENT = "/opt/sickbay/bin/sickbay-agent"

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can build a root filesystem"),
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in ("buildah", "mmdebstrap", "runc")),
        reason="buildah, mmdebstrap or runc is not installed: make test-images installs them",
    ),
]


@pytest.fixture(scope="module")
def _store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store of this test's own, which needs no overlay and no other user's images."""
    folder = tmp_path_factory.mktemp("containers")
    settings = folder / "storage.conf"
    settings.write_text(
        f'[storage]\ndriver = "vfs"\nrunroot = "{folder}/run"\ngraphroot = "{folder}/graph"\n'
    )
    mine = {"CONTAINERS_STORAGE_CONF": str(settings), "BUILDAH_ISOLATION": "chroot"}
    before = {name: os.environ.get(name) for name in mine}
    os.environ.update(mine)
    yield
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def plan(_store: None) -> images.Plan:
    """The images of `make images`. This machine's authorities let pip reach its index."""
    epoch = tree.commit_time(os.environ)
    base, builder = debian_base.make(images.run, epoch, debian_base.SUITE)
    network = f"--volume={NETWORK}:{NETWORK}:ro"
    revision = tree.revision()
    return images.Plan("test/", tree.version(), revision, epoch, base, builder, options=(network,))


@pytest.fixture(scope="module")
def built(plan: images.Plan) -> dict[str, images.Built]:
    """Both images, with digests and sizes."""
    found = {}
    for program in images.PROGRAMS:
        images.run(plan.build(program))
        found[program] = images.measure(plan.image(program))
    images.write_figures(FIGURES, found)
    return found


@pytest.fixture(scope="module")
def agent(built: dict[str, images.Built]) -> Iterator[Image]:
    with Image(built["agent"].name) as image:
        yield image


@pytest.fixture(scope="module")
def aggregator(built: dict[str, images.Built]) -> Iterator[Image]:
    with Image(built["aggregator"].name) as image:
        yield image


@pytest.mark.parametrize("program", images.PROGRAMS)
def test_a_second_build_gives_the_same_digest(
    plan: images.Plan, built: dict[str, images.Built], program: str
) -> None:
    first = built[program]
    output("buildah", "rmi", "--force", first.name)
    images.run(plan.build(program))
    assert images.measure(plan.image(program)).digest == first.digest


@pytest.mark.parametrize("program", images.PROGRAMS)
def test_the_labels_name_version_commit_and_base(
    plan: images.Plan, built: dict[str, images.Built], program: str
) -> None:
    labels = Image(built[program].name).config["Labels"]
    prefix = "org.opencontainers.image."
    found = {key.removeprefix(prefix): text for key, text in labels.items() if prefix in key}
    assert found["title"] == f"sickbay-{program}"
    assert found["licenses"] == "Apache-2.0"
    assert found["version"] == tree.version()
    assert found["revision"] == plan.revision
    assert f"{found['base.name']}@{found['base.digest']}" == plan.base


@pytest.mark.parametrize("program", images.PROGRAMS)
def test_the_bill_of_materials_lists_what_is_installed_and_is_valid(
    request: pytest.FixtureRequest, program: str
) -> None:
    image: Image = request.getfixturevalue(program)
    path = image.root / "opt/sickbay/share/sickbay/sbom.cdx.json"
    listed = {one["name"] for one in json.loads(path.read_text("utf-8"))["components"]}
    names = {package.split("-")[0].lower().replace("_", "-") for package in _packages(image)}
    assert listed == names - {"sickbay"}
    environment.validate_bill(path)


def _packages(image: Image) -> set[str]:
    """What is installed in it, with versions: NAME-VERSION.dist-info."""
    return {
        path.name for path in image.root.glob("opt/sickbay/lib/python*/site-packages/*.dist-info")
    }


def test_the_agents_image_checks_the_machine(agent: Image, tmp_path: Path) -> None:
    version = agent.run("--version", folder=tmp_path)
    assert (version.returncode, version.stdout.strip()) == (0, f"sickbay-agent {tree.version()}")
    checked = agent.run("check", "-o", "json", folder=tmp_path)
    assert checked.returncode in {0, 1}, checked.stdout
    found = json.loads(checked.stdout)
    assert found["source"] == "probe"
    assert {"disk-space", "xid"} <= {check["name"] for check in found["checks"]}
    # One that speaks gRPC; it ends with its standard input.
    options = ("--stdin", "--nodes", "1", "--aggregator", "127.0.0.1:9")
    simulated = agent.run("simulate", *options, folder=tmp_path)
    assert simulated.returncode == 0, simulated.stdout


def test_the_aggregators_image_serves_the_page_in_local_mode_as_a_plain_user(
    aggregator: Image, tmp_path: Path
) -> None:
    version = aggregator.run("--version", folder=tmp_path)
    assert version.stdout.strip() == f"sickbay-aggregator {tree.version()}"
    settings, data = tmp_path / "etc", tmp_path / "data"
    settings.mkdir()
    data.mkdir()
    os.chown(data, 10001, 10001)
    shutil.copy(ROOT / "deploy/debian/aggregator/aggregator.yaml", settings)
    places = {"/etc/sickbay": settings, "/var/lib/sickbay-aggregator": data}
    command = aggregator.config["Cmd"]
    with aggregator.container(command, tmp_path, mounts=places) as container:
        code = (
            "import urllib.request as u; "
            "print(u.urlopen('http://127.0.0.1:8080/', timeout=5).read().decode())"
        )

        def page() -> str:
            assert container.process.poll() is None, container.log.read_text()
            answer = container.python(code)
            return answer.stdout if answer.returncode == 0 else ""

        shown = wait_until(page, what="the page", timeout_s=90, every_s=1)
        assert "<title>" in shown
        who = container.python("import os; print(os.getuid())")
        assert who.stdout.strip() == "10001"
    assert (data / "cluster.db").exists()


def test_the_images_hold_neither_pip_nor_the_other_program(agent: Image, aggregator: Image) -> None:
    for image, other in ((agent, "aggregator"), (aggregator, "nodeagent")):
        assert not list(image.root.glob("opt/sickbay/lib/python*/site-packages/pip"))
        assert not list(image.root.glob(f"opt/sickbay/lib/python*/site-packages/{other}"))
        assert not list(image.root.glob("usr/lib/python3/dist-packages/pip"))


@pytest.mark.parametrize("program", images.PROGRAMS)
def test_each_program_in_an_image_is_of_its_platform_alone(
    built: dict[str, images.Built], program: str
) -> None:
    images.check_machine(built[program].name, "")
    with pytest.raises(images.ImageError, match=f"is no program of {FOREIGN}"):
        images.check_machine(built[program].name, FOREIGN)


def test_the_agents_image_of_the_other_architecture_has_the_same_packages_and_runs(
    plan: images.Plan, agent: Image
) -> None:
    try:
        images.check_emulation(FOREIGN)
    except images.ImageError as error:
        pytest.skip(str(error))
    base, builder = debian_base.make(
        images.run, plan.epoch, debian_base.SUITE, FOREIGN.partition("/")[2]
    )
    foreign = replace(plan, platform=FOREIGN, base=base, builder=builder)
    images.run(foreign.build("agent"))
    name = foreign.image("agent")
    images.check_machine(name, FOREIGN)
    with Image(name) as image:
        for key in ("Entrypoint", "Cmd", "Env"):
            assert image.config[key] == agent.config[key]
        assert image.config["Labels"].keys() == agent.config["Labels"].keys()
        assert _packages(image) == _packages(agent)
    ran = output("buildah", "run", output("buildah", "from", name), "--", AGENT, "--version")
    assert ran == f"sickbay-agent {tree.version()}"


def test_the_figures_are_written_for_the_benchmarks(built: dict[str, images.Built]) -> None:
    figures = json.loads(FIGURES.read_text("utf-8"))
    assert figures["image_agent_mib"] == round(built["agent"].unpacked / 2**20, 1)
    assert 20 < figures["image_agent_mib"] < figures["image_aggregator_mib"] < 1000
    assert figures["image_agent_packed_mib"] < figures["image_agent_mib"]
