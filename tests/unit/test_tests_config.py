"""The configuration of tests of nodes: of their Jobs, of new nodes and of idle nodes."""

from pathlib import Path

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.repairers.agent import AgentRepairer
from aggregator.repairers.agent_orders import AgentOrders
from aggregator.repairers.factory import repair_settings
from aggregator.repairers.gpu_use import UnlessGpuInUse
from aggregator.repairers.job import JobRepairer
from tests.support.present import present
from tests.unit.repair_config import IMAGE, KUBERNETES, TESTS, checked, loaded, problems


def test_a_test_before_a_release_needs_a_repairer_that_tests(tmp_path: Path) -> None:
    text = "repair:\n  mode: repair\n  verify: standard\n  repairers:\n"
    found = loaded(tmp_path, text + TESTS)
    made = repair_settings(found, domain_labels=(), wall=lambda: 0.0, agents=AgentOrders())
    assert made.verifies
    assert isinstance(made.repairers["test"].repairer, AgentRepairer)
    assert made.repairers["test"].timeout == 2700.0
    (told,) = problems(tmp_path, f"{text}    - {{kind: reboot, agent: {{}}}}\n")
    assert "repair.verify" in told
    assert "kind: test" in told


def test_a_job_that_tests_has_the_profile_that_is_asked_for(tmp_path: Path) -> None:
    image = f"registry.example/tests@sha256:{'0' * 64}"
    text = (
        "repair:\n  mode: repair\n  verify: long\n  repairers:\n"
        f"    - {{kind: test, job: {{namespace: t, image: '{image}', "
        "profiles: {quick: {command: [/q]}}}}\n"
    )
    (told,) = problems(tmp_path, text, KUBERNETES)
    assert '"long" is no profile of the job that tests; expected one of quick' in told
    assert loaded(tmp_path, text.replace("long", "quick"), KUBERNETES).verify == "quick"


@pytest.mark.parametrize("value", ["../x", "a b", "x/y", '"-x"'])
def test_a_profile_has_a_name_of_a_file(tmp_path: Path, value: str) -> None:
    (told,) = problems(tmp_path, f"repair:\n  verify: {value}\n  repairers:\n{TESTS}")
    assert "the name of a test profile" in told


@pytest.mark.parametrize(
    "provider",
    ["karpenter: true", "ipmi: {host: '{node}', user: u, password_file: secret}"],
)
def test_only_a_repairer_that_can_tell_a_verdict_tests(tmp_path: Path, provider: str) -> None:
    text = f"repair:\n  repairers:\n    - {{kind: test, {provider}}}\n"
    told = problems(tmp_path, text, KUBERNETES)
    assert any("can give no verdict about the node" in one for one in told)


def job(**more: str) -> str:
    """A repairer of tests by Jobs, in which these lines are others."""
    lines = {
        "namespace": "tests",
        "image": IMAGE,
        "profiles": "{quick: {command: [a, b]}}",
    } | {name: text for name, text in more.items() if name != "kind"}
    body = "".join(f"\n        {name}: {text}" for name, text in lines.items())
    return f"repair:\n  repairers:\n    - kind: {more.get('kind', 'test')}\n      job:{body}"


def test_a_job_runs_the_tests_of_its_profiles(tmp_path: Path) -> None:
    found = loaded(tmp_path, job(), KUBERNETES)
    cluster = KubeCluster()
    made = repair_settings(
        found, domain_labels=(), wall=lambda: 0.0, objects=lambda _: cluster.objects()
    )
    one = made.repairers["test"]
    assert isinstance(one.repairer, UnlessGpuInUse)
    assert isinstance(one.repairer.inner, JobRepairer)
    assert one.repairer.sends_twice
    assert one.clean_up is not None
    assert one.missing_rights is not None
    assert not one.by_agent
    assert made.test_namespace == "tests"
    [section] = found.repairers
    assert section.job is not None
    assert (section.job.gpus, section.job.gpu_resource) == ("all", "nvidia.com/gpu")
    assert made.test_profiles == frozenset({"quick"})


@pytest.mark.parametrize(
    ("gpus", "mode", "expected"),
    [('"all"', "repair", True), ("4", "repair", False), ('"all"', "off", False)],
)
def test_only_a_job_with_all_gpus_tests_a_node_in_service(
    tmp_path: Path,
    gpus: str,
    mode: str,
    expected: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """A pod with fewer GPUs could begin beside work."""
    text = job(gpus=gpus).replace("repair:\n", f"repair:\n  mode: {mode}\n")
    made = repair_settings(
        loaded(tmp_path, text, KUBERNETES),
        domain_labels=(),
        wall=lambda: 0.0,
        objects=lambda _: KubeCluster().objects(),
    )
    assert made.tests_in_service is expected


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        (job(kind="reboot"), "job: runs a test and repairs nothing; expected it under test"),
        (job(namespace="Tests"), "job.namespace: "),
        (job(namespace='""'), "job.namespace: "),
        (job(image='""'), "job.image: "),
        (job(profiles="{}"), "job.profiles: is empty; expected at least one entry"),
        (job(profiles="[quick]"), "job.profiles: a list; expected a section: keys, indented"),
        (job(profiles="{A/b: {command: [a]}}"), 'job.profiles.A/b: "A/b"; expected the name'),
        (job(profiles="{quick: {command: []}}"), "job.profiles.quick.command: is empty; expected"),
        (job(profiles="{quick: {command: a}}"), "job.profiles.quick.command: "),
        (job(gpus="-1"), 'job.gpus: -1; expected a number of GPUs from 0 to 1024, or "all"'),
        (job(gpus="some"), 'job.gpus: "some"; expected a number of GPUs from 0 to 1024, or "all"'),
        (job(service_account='"A_"'), 'job.service_account: "A_"; expected small letters'),
        (job(priority_class='"-"'), 'job.priority_class: "-"; expected small letters'),
        (job(template="x"), "job.template: this text; expected a section"),
        (job(template="{kind: Pod}"), "template.kind: unknown key; expected one of metadata, spec"),
        (job(template="{spec: [a]}"), "template.spec: a list; expected a section"),
        (job(template="{spec: {nodeName: a}}"), "template.spec.nodeName: is set by sickbay"),
        (job(template="{spec: {restartPolicy: Always}}"), "template.spec.restartPolicy: is set"),
        (
            job(template="{spec: {tolerations: [{operator: Exists}]}}"),
            "tolerations[0]: tolerates every taint, also those of other parties; expected key",
        ),
        (job(template="{spec: {tolerations: x}}"), "template.spec.tolerations: "),
        (
            job(template="{spec: {containers: [{}, {}]}}"),
            "containers: a list; expected a list of at mo",
        ),
        (job(template="{spec: {containers: [{image: a}]}}"), "containers[0].image: is set by"),
        (job(template="{spec: {containers: [a]}}"), "containers[0]: "),
        (job(template="{metadata: {name: a}}"), "metadata.name: unknown key"),
        (job(template="{metadata: {labels: {a: 1}}}"), "metadata.labels.a: 1; expected text"),
        (
            job(template="{metadata: {annotations: {sickbay.dev/repair-operation: a}}}"),
            "is sickbay's or Kubernetes' own; expected another key",
        ),
    ],
)
def test_a_mistake_about_a_tests_job_is_named_with_its_key(
    tmp_path: Path, text: str, reply: str
) -> None:
    found = problems(tmp_path, text, KUBERNETES)
    assert any(reply in one for one in found), found
    assert all(".yaml:" in one and "expected" in one for one in found)
    assert not any(word in one for one in found for word in ("constrained", "literal", "pattern"))


def test_a_tests_job_needs_kubernetes(tmp_path: Path) -> None:
    found = problems(tmp_path, job())
    assert any("job: needs an API server" in one for one in found), found


NEW_NODES = "  new_nodes: {taint: sickbay.dev/untested, profile: quick}\n"


def test_new_nodes_are_tested_by_the_repairer_of_tests(tmp_path: Path) -> None:
    text = f"repair:\n  mode: repair\n{NEW_NODES}  repairers:\n{TESTS}"
    found = loaded(tmp_path, text, KUBERNETES)
    made = repair_settings(found, domain_labels=(), wall=lambda: 0.0, agents=AgentOrders())
    assert (made.rules.new_nodes.attempts, made.rules.new_nodes.concurrent) == (3, 4)
    assert made.rules.new_nodes.remove_taint
    assert made.repairers["test"].by_agent


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            TESTS,
            "    - {kind: reboot, agent: {}}\n",
            'new_nodes.profile: "quick" needs one that tests',
        ),
        ("mode: repair", "mode: off", "repair.mode is off; expected mode: repair"),
        ("sickbay.dev/untested", "sickbay.dev/quarantine", "expected another key"),
        ("sickbay.dev/untested", "ours.example/sick", "expected another key"),
        ("sickbay.dev/untested", "node.kubernetes.io/not-ready", "which must not go"),
        ("sickbay.dev/untested", "nvidia.com/gpu", "which must not go"),
        ("sickbay.dev/untested", "karpenter.sh/disrupted", "which must not go"),
        ("sickbay.dev/untested", "ToBeDeletedByClusterAutoscaler", "which must not go"),
        (
            "sickbay.dev/untested",
            '"sickbay.dev/untested=:NoSchedule"',
            'expected the taint\'s key alone: "sickbay.dev/untested"',
        ),
        ("profile: quick", "profile: ../x", "the name of a test profile"),
        ("profile: quick", "profile: quick, attempts: 0", "attempts"),
        ("profile: quick", "profile: quick, concurent: 2", "concurent"),
        ("taint: sickbay.dev/untested", "taint: a b", "taint"),
    ],
)
def test_a_mistake_about_new_nodes_is_refused_with_its_place(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    marks = "marks: {taint: {key: ours.example/sick}}\n"
    text = f"{marks}repair:\n  mode: repair\n{NEW_NODES}  repairers:\n{TESTS}"
    told = problems(tmp_path, text.replace(old, new), KUBERNETES)
    assert any(expected in one and "repair.new_nodes" in one for one in told), told


IDLE_NODES = "  idle_nodes: {every: 7d, profile: quick}\n"
JOB_TESTS = """    - kind: test
      timeout: 80m
      job:
        namespace: sickbay-tests
        image: registry.example/tests:1
        profiles: {quick: {command: [/quick]}}
"""


def test_idle_nodes_are_tested_by_the_job_of_tests(tmp_path: Path) -> None:
    text = f"repair:\n  mode: repair\n{IDLE_NODES}  repairers:\n{JOB_TESTS}"
    found = present(loaded(tmp_path, text, KUBERNETES).idle_nodes)
    assert (found.every, found.concurrent) == (7 * 86400, 2)
    assert found.priority_class == "sickbay-idle-test"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (JOB_TESTS, TESTS, "only the scheduler can do that to a pod"),
        (JOB_TESTS, "    - {kind: reboot, agent: {}}\n", "only the scheduler can do that to a pod"),
        ("  namespace: sickbay-tests", "  namespace: sickbay-tests\n        gpus: 0", "in use"),
        ("profile: quick", "profile: standard", "is no profile of the job"),
        ("every: 7d", "every: 1m", "every"),
        ("every: 7d", "concurrent: 0", "concurrent"),
        ("every: 7d", "priority_class: A B", "priority_class"),
        ("every: 7d", "evry: 7d", "evry"),
    ],
)
def test_a_mistake_about_idle_nodes_is_refused_with_its_place(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    text = f"repair:\n  mode: repair\n{IDLE_NODES}  repairers:\n{JOB_TESTS}"
    assert old in text
    told = problems(tmp_path, text.replace(old, new), KUBERNETES)
    assert any(expected in one and "repair.idle_nodes" in one for one in told), told


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "observe"])
def test_idle_nodes_without_repairs_are_a_warning(tmp_path: Path, mode: str) -> None:
    text = f"repair:\n  mode: {mode}\n{IDLE_NODES}  repairers:\n{JOB_TESTS}"
    code, told = checked(tmp_path, f"mode: drain\n{text}", KUBERNETES)
    assert code == 0, told
    expected = f'repair.idle_nodes: has no effect: with repair.mode "{mode}" no idle node is tested'
    assert any(expected in one for one in told), told


def test_without_the_section_no_idle_node_is_tested(tmp_path: Path) -> None:
    assert loaded(tmp_path, "repair: {mode: off}\n").idle_nodes is None


def test_without_a_taint_no_node_is_tested_as_a_new_one(tmp_path: Path) -> None:
    assert loaded(tmp_path, "repair: {new_nodes: {profile: quick}}\n").new_nodes.taint == ""


def test_without_kubernetes_there_are_no_startup_taints(tmp_path: Path) -> None:
    text = f"repair:\n  mode: repair\n{NEW_NODES}  repairers:\n{TESTS}"
    (told,) = problems(tmp_path, text)
    assert 'cluster.kind is not "kubernetes"' in told


KEEP = 'no test runs, and new nodes keep their taint "sickbay.dev/untested"; expected'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "mode: repair",
            "mode: observe",
            f'repair.new_nodes.taint: with repair.mode "observe" {KEEP} mode "repair"',
        ),
        (
            "mode: cordon\n",
            "",
            f'repair.new_nodes.taint: with mode "observe" of every node {KEEP} "cordon" or "drain"',
        ),
        (
            "taint: sickbay.dev/untested, profile: quick",
            "profile: long",
            "repair.new_nodes: its keys have no effect without a taint; expected taint, its key",
        ),
    ],
)
def test_the_check_warns_of_new_nodes_that_are_not_tested(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    text = f"mode: cordon\nrepair:\n  mode: repair\n{NEW_NODES}  repairers:\n{TESTS}"
    assert checked(tmp_path, text, KUBERNETES) == (0, [])
    assert checked(tmp_path, text.replace(old, new), KUBERNETES) == (0, [expected])
