"""The section ``repair``: off by default, and each mistake with its line and what to write."""

from pathlib import Path

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.repairers.agent import AgentRepairer
from aggregator.repairers.agent_orders import AgentOrders
from aggregator.repairers.cluster_api import ClusterApiRepairer
from aggregator.repairers.command import CommandRepairer
from aggregator.repairers.external import ExternalRepairer
from aggregator.repairers.factory import repair_settings
from aggregator.repairers.gpu_use import UnlessGpuInUse
from aggregator.repairers.karpenter import KarpenterRepairer
from aggregator.repairers.webhook import WebhookRepairer
from tests.support.present import of_type, present
from tests.unit.repair_config import IMAGE, KUBERNETES, checked, loaded, problems


@pytest.mark.parametrize(
    "text", ["", "repair:\n", "repair: {mode: off}\n", 'repair: {mode: "off"}\n']
)
def test_repairs_are_off_unless_the_mode_says_otherwise(tmp_path: Path, text: str) -> None:
    found = loaded(tmp_path, text)
    assert found.mode is RepairMode.OFF
    assert repair_settings(found, domain_labels=(), wall=lambda: 0.0).off


def test_each_kind_has_the_repairer_that_is_configured(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        "repair:\n  mode: repair\n  repairers:\n"
        "    - {kind: reboot, command: [reboot-it, '{node}']}\n"
        "    - {kind: gpu-reset, command: [reset-it], idempotent: true, timeout: 10m}\n"
        "    - {kind: ticket, webhook: {url: 'https://example/', secret_file: secret}}\n",
    )
    made = repair_settings(found, domain_labels=("rack",), wall=lambda: 0.0)
    assert set(made.repairers) == {"gpu-reset", "reboot", "ticket"}
    assert made.repairers["gpu-reset"].timeout == 600.0
    assert made.repairers["gpu-reset"].repairer.sends_twice
    reboot = of_type(made.repairers["reboot"].repairer, UnlessGpuInUse)
    assert isinstance(reboot.inner, CommandRepairer)
    assert isinstance(made.repairers["ticket"].repairer, WebhookRepairer)
    assert not made.repairers["reboot"].repairer.sends_twice
    assert made.rules.mode is RepairMode.REPAIR
    assert made.domain_labels == ("rack",)


def test_the_nodes_own_agent_is_a_repairer_of_what_agents_can_do(tmp_path: Path) -> None:
    text = "repair:\n  repairers: [{kind: gpu-reset, agent: {}}, {kind: reboot, agent: {}}]\n"
    found = loaded(tmp_path, text)
    made = repair_settings(found, domain_labels=(), wall=lambda: 0.0, agents=AgentOrders())
    assert set(made.repairers) == {"gpu-reset", "reboot"}
    assert all(isinstance(one.repairer, AgentRepairer) for one in made.repairers.values())
    assert all(one.repairer.sends_twice for one in made.repairers.values())
    assert all(one.note_end and one.withdraw for one in made.repairers.values())


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("repair: {mode: on}\n", "repair.mode: "),
        ("repair: {mode: reboot}\n", "repair.mode: "),
        (
            "repair: {mode: repair}\n",
            'repair.mode: repairs nodes, and no repairer is configured; expected repairers, or "ob',
        ),
        (
            "repair: {repairers: [{kind: reboot}]}\n",
            "repairers[0]: names nothing that carries reboot out; expected one of agent, command",
        ),
        (
            "repair:\n  repairers:\n    - kind: test\n      agent:\n",
            "repairers[0]: agent is empty; expected agent: {}",
        ),
        (
            "repair: {repairers: [{kind: replace, command: }]}\n",
            "repairers[0]: command is empty; expected a program, such as command: [",
        ),
        (
            "repair: {repairers: [{kind: reboot, redfish: }]}\n",
            "repairers[0]: redfish is empty; expected the keys of redfish",
        ),
        (
            "repair: {repairers: [{kind: replace, agent: {}}]}\n",
            "repairers[0].agent: is nothing that an agent can do; expected it under gpu-reset or",
        ),
        (
            "repair: {repairers: [{kind: reboot, agent: {}, command: [a]}]}\n",
            "repairers[0]: has agent and command; expected one of agent, command, webhook",
        ),
        (
            "repair: {repairers: [{kind: reboot, agent: {verbs: [reboot]}}]}\n",
            "repairers[0].agent.verbs: ",
        ),
        (
            (
                "repair:\n  repairers:\n    - kind: reboot\n      command: [a]\n"
                "      webhook: {url: 'https://x/', secret_file: secret}\n"
            ),
            "repairers[0]: has command and webhook; expected one of agent, command, webhook",
        ),
        (
            "repair: {repairers: [{kind: reboot, command: [a, '{nod}']}]}\n",
            'no value is filled in for "{nod}"',
        ),
        (
            "repair: {repairers: [{kind: reboot, command: [a], cancel: [b, '{node-uid}']}]}\n",
            'repairers[0].cancel: no value is filled in for "{node-uid}" (did you mean',
        ),
        (
            (
                "repair:\n  repairers:\n    - kind: reboot\n"
                "      webhook: {url: 'https://x/{node}/s3cret', secret_file: secret}\n"
            ),
            (
                'repairers[0].webhook.url: no value is filled in for "{node}" in a webhook\'s URL; '
                "expected one URL for all calls: the body has the node"
            ),
        ),
        (
            (
                "repair: {repairers: [{kind: replace, "
                "ipmi: {host: '{node}', user: u, password_file: secret}}]}"
            ),
            "repairers[0].ipmi: restarts the machine; expected it under reboot",
        ),
        (
            "repair: {repairers: [{kind: reboot, slurm: true}]}\n",
            'repairers[0].slurm: needs Slurm, and cluster.kind is not "slurm"; expected another',
        ),
        (
            "repair: {repairers: [{kind: ticket, command: [a]}]}\n",
            "repairers[0].command: a ticket has more evidence than arguments; expected webhook",
        ),
        (
            (
                "repair:\n  repairers:\n    - kind: reboot\n      idempotent: true\n"
                "      webhook: {url: 'https://x/', secret_file: secret}\n"
            ),
            "repairers[0].idempotent: is about a command; expected command too",
        ),
        (
            (
                "repair:\n  repairers:\n    - kind: reboot\n"
                "      redfish: {url: 'http://{node}/', user: u, password_file: secret}\n"
            ),
            "redfish.url: would send the BMC's password in the clear; expected https://",
        ),
        (
            (
                "repair:\n  repairers:\n    - kind: reboot\n"
                "      redfish: {url: 'https://{node}/', user: u, password_file: none}\n"
            ),
            "redfish.password_file: ",
        ),
        (
            (
                "repair:\n  repairers:\n    - kind: reboot\n"
                "      ipmi: {host: '-oProxy', user: u, password_file: secret}\n"
            ),
            "ipmi.host: ",
        ),
        (
            "repair: {repairers: [{kind: reboot, command: [a]}, {kind: reboot, command: [b]}]}\n",
            'repairers[1].kind: "reboot" has an entry already; expected one entry for each',
        ),
        (
            "repair: {repairers: [{kind: reboot, agent: true}]}\n",
            "repairers[0].agent: true; expected {}, as it has no keys",
        ),
        (
            "repair: {repairers: [{kind: reboot, agent: {}, timeout: 99d}]}\n",
            'repairers[0].timeout: "99d"; expected at most "1d"',
        ),
        (
            "repair: {repairers: [{kind: reboot, command: [a], call_timeout: 6m, timeout: 5m}]}\n",
            'repairers[0].call_timeout: "6m" is longer than timeout; expected at most "5m"',
        ),
        (
            "repair: {repairers: [{kind: reboot, command: [a, 'x{profile}']}]}\n",
            "repairers[0].command: reboot has no test profile to fill in; expected {profile} under",
        ),
        (
            "repair: {repairers: [{kind: reboot, command: [a], cancel: [b, '{profile}']}]}\n",
            "repairers[0].cancel: reboot has no test profile to fill in; expected {profile} under",
        ),
        (
            (
                "repair: {repairers: [{kind: reboot, "
                "ipmi: {host: '{nodee}-bmc', user: u, password_file: secret}}]}"
            ),
            'repairers[0].ipmi.host: no value is filled in for "{nodee}"; expected {node}',
        ),
        (
            (
                "repair: {repairers: [{kind: reboot, "
                "ipmi: {host: 10.0.0.1, user: u, password_file: secret}}]}"
            ),
            "repairers[0].ipmi.host: is the same for every node; expected {node} in it",
        ),
        (
            (
                "repair: {repairers: [{kind: reboot, "
                "redfish: {url: 'https://{operation}/', user: u, password_file: secret}}]}"
            ),
            'repairers[0].redfish.url: no value is filled in for "{operation}"; expected {node}',
        ),
        (
            (
                "repair: {repairers: [{kind: reboot, "
                "redfish: {url: 'https://bmc/', user: u, password_file: secret}}]}"
            ),
            "repairers[0].redfish.url: is the same for every node; expected {node} in it",
        ),
        ("repair: {attempts: 0}\n", "repair.attempts: "),
        ("repair: {window: 1m}\n", "repair.window: "),
        ("repair: {repairers: [{kind: reset, command: [a]}]}\n", "repair.repairers[0].kind: "),
    ],
)
def test_a_mistake_is_named_with_its_key_and_what_to_write(
    tmp_path: Path, text: str, reply: str
) -> None:
    (found,) = problems(tmp_path, text)
    assert ".yaml:" in found
    assert reply in found
    assert "expected" in found


JOB = (
    "repair: {{repairers: [{{kind: test, job: {{namespace: {namespace}, image: '{image}', "
    "profiles: {{q: {{command: [a]{more}}}}}}}}}]}}\n"
)


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        ({"namespace": "sickbay"}, '"sickbay" is sickbay\'s own, whose secrets such a Job could'),
        ({"namespace": "kube-system"}, '"kube-system" is Kubernetes\' own; expected a namespace'),
        ({"image": "https://x/y"}, 'expected an image, "HOST/NAME:TAG" or "HOST/NAME@sha256'),
        ({"image": "registry.example/Tests"}, "expected an image"),
        ({"image": "tests:a:b"}, "expected an image"),
        ({"image": "tests@sha256:0123"}, "expected an image"),
        ({"more": ", args: [b]"}, "profiles.q.args: unknown key; expected one of command"),
    ],
)
def test_a_job_that_cannot_work_is_refused(
    tmp_path: Path, words: dict[str, str], reply: str
) -> None:
    given = {"namespace": "gpu-tests", "image": IMAGE, "more": "", **words}
    (found,) = problems(tmp_path, JOB.format(**given), KUBERNETES)
    assert reply in found


@pytest.mark.parametrize(
    "image",
    [
        "tests",
        "tests:1.0_B",
        "localhost:5000/a/b-c__d.e:v1",
        "Registry.example:443/a@sha256:" + "0" * 64,
        "[::1]:5000/a",
        IMAGE,
    ],
)
def test_every_reference_of_an_image_is_taken(tmp_path: Path, image: str) -> None:
    text = JOB.format(namespace="gpu-tests", image=image, more="")
    (section,) = loaded(tmp_path, text, KUBERNETES).repairers
    assert section.job is not None
    assert section.job.image == image


def test_sickbays_own_namespace_is_the_one_of_its_cluster(tmp_path: Path) -> None:
    cluster = "cluster: {kind: kubernetes, namespace: health}\n" + KUBERNETES
    text = JOB.format(namespace="health", image=IMAGE, more="")
    (found,) = problems(tmp_path, text, cluster)
    assert "sickbay's own" in found


@pytest.mark.parametrize(
    "provider",
    [
        "karpenter: true",
        "cluster_api: true",
        "external: {template: {apiVersion: v1, kind: Pod, metadata: {namespace: n}}}",
    ],
)
def test_one_that_cannot_test_is_told_so_once(tmp_path: Path, provider: str) -> None:
    text = f"repair: {{repairers: [{{kind: test, {provider}}}]}}\n"
    (found,) = problems(tmp_path, text, KUBERNETES)
    assert "can give no verdict about the node; expected agent, command, webhook or job" in found


@pytest.mark.slow
def test_the_check_warns_of_programs_that_are_not_there_and_of_a_test_without_effect(
    tmp_path: Path,
) -> None:
    text = """\
repair:
  mode: observe
  verify: standard
  repairers:
    - {kind: reboot, ipmi: {host: "{node}", user: u, password_file: secret, program: no-ipmi}}
    - {kind: replace, command: [no-such, "{node}"], cancel: [sh, "{node}"]}
    - {kind: gpu-reset, command: [sh, "{node}"], cancel: [no-cancel]}
    - {kind: test, agent: {}}
"""
    code, told = checked(tmp_path, text, KUBERNETES)
    assert code == 0, told
    no_effect = (
        'repair.verify: "standard" has no effect: with repair.mode "observe" no test runs, and '
        'nodes are released without one; expected mode "repair", or ""'
    )
    hint = "; right if the aggregator runs elsewhere, or in an image that has it"
    assert told == [
        f"repair.repairers[0].ipmi.program: no program can be run here as 'no-ipmi'{hint}",
        f"repair.repairers[1].command: no program can be run here as 'no-such'{hint}",
        f"repair.repairers[2].cancel: no program can be run here as 'no-cancel'{hint}",
        no_effect,
    ]


@pytest.mark.slow
def test_the_check_warns_of_a_template_whose_part_is_misspelt(tmp_path: Path) -> None:
    text = (
        "repair:\n  repairers:\n    - kind: reboot\n      external:\n        template: "
        "{apiVersion: v1, kind: Pod, metdata: {}, specs: {}, spec: {}, data: {}}\n"
    )
    code, told = checked(tmp_path, text, KUBERNETES)
    assert code == 0, told
    assert told == [
        'repair.repairers[0].external.template.metdata: is sent as it is; did you mean "metadata"?'
    ]


# -- repairers that act by objects ------------------------------------------------------------

EXTERNAL = """\
repair:
  mode: repair
  repairers:
    - kind: {kind}
      external:
        template:
          apiVersion: {version}
          kind: {object}
          metadata: {metadata}
          spec: {spec}
        succeeded: {succeeded}
        failed: {failed}
"""
WORDS = {
    "kind": "reboot",
    "version": "example.test/v1",
    "object": "Repair",
    "metadata": "{namespace: ns}",
    "spec": '{node: "{node}", deep: [{gpus: "{gpus}"}], count: 2, on: true}',
    "succeeded": "{condition: Done}",
    "failed": "{field: status.phase, equals: Failed}",
}


def external(**words: str) -> str:
    return EXTERNAL.format(**{**WORDS, **words})


@pytest.mark.parametrize(
    ("text", "repairer"),
    [
        ("{kind: replace, karpenter: true}", KarpenterRepairer),
        ("{kind: replace, cluster_api: true}", ClusterApiRepairer),
        (
            "{kind: replace, cluster_api: true, management_kubeconfig: secret}",
            ClusterApiRepairer,
        ),
    ],
)
def test_a_replacement_is_by_karpenter_or_cluster_api(
    tmp_path: Path, text: str, repairer: type
) -> None:
    found = loaded(tmp_path, f"repair: {{mode: repair, repairers: [{text}]}}", KUBERNETES)
    asked = list[Path | None]()
    cluster = KubeCluster()

    def objects(kubeconfig: Path | None) -> object:
        asked.append(kubeconfig)
        return cluster.objects(str(kubeconfig or ""))

    made = repair_settings(found, domain_labels=(), wall=lambda: 0.0, objects=objects)  # type: ignore[arg-type]
    one = made.repairers["replace"]
    assert isinstance(one.repairer, UnlessGpuInUse)
    assert isinstance(one.repairer.inner, repairer)
    assert one.repairer.sends_twice
    assert one.missing_rights is not None
    assert (one.clean_up is not None) is (repairer is ClusterApiRepairer)
    assert (tmp_path / "secret" in asked) is ("management" in text)


@pytest.mark.parametrize("kind", ["gpu-reset", "reboot", "external", "replace"])
def test_a_template_serves_every_kind_but_a_ticket(tmp_path: Path, kind: str) -> None:
    found = loaded(tmp_path, external(kind=kind), KUBERNETES)
    cluster = KubeCluster()
    made = repair_settings(
        found, domain_labels=(), wall=lambda: 0.0, objects=lambda _: cluster.objects()
    )
    found_repairer = of_type(made.repairers[kind].repairer, UnlessGpuInUse)
    assert isinstance(found_repairer.inner, ExternalRepairer)
    assert made.repairers[kind].clean_up is not None


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        (
            "repair: {repairers: [{kind: reboot, karpenter: true}]}",
            "repairers[0].karpenter: replaces the machine; expected it under replace",
        ),
        (
            "repair: {repairers: [{kind: gpu-reset, cluster_api: true}]}",
            "repairers[0].cluster_api: replaces the machine; expected it under replace",
        ),
        (
            "repair: {repairers: [{kind: replace, karpenter: true, cluster_api: true}]}",
            "repairers[0]: has karpenter and cluster_api; expected one of agent, command",
        ),
        (
            "repair: {repairers: [{kind: reboot, agent: {}, pause_gpu_operator: true}]}",
            "[0].pause_gpu_operator: stops pods that hold GPUs; expected it under gpu-reset",
        ),
        (
            "repair: {repairers: [{kind: replace, karpenter: false}]}",
            "repairers[0]: names nothing that carries replace out; expected one of agent, command",
        ),
        (
            (
                "repair: {repairers: [{kind: replace, karpenter: true,"
                " management_kubeconfig: secret}]}"
            ),
            "management_kubeconfig: is about Machines; expected cluster_api: true too",
        ),
        (
            (
                "repair: {repairers: [{kind: replace, cluster_api: true,"
                " management_kubeconfig: none}]}"
            ),
            "repairers[0].management_kubeconfig: ",
        ),
        (
            external(kind="ticket"),
            "external: a ticket has more evidence than an object of a template; expected webhook",
        ),
        (
            external(kind="gpu-reset", succeeded=""),
            "external: no Node proves gpu-reset; expected succeeded, the condition that shows it",
        ),
        (
            external(failed="{condition: Done}"),
            "external.failed: is the same as succeeded; expected another condition",
        ),
        (
            external(succeeded="{}"),
            "external.succeeded: has no condition and no field; expected one of them",
        ),
        (
            external(succeeded="{condition: A, field: status.a, equals: b}"),
            "external.succeeded: has condition and field; expected one of them",
        ),
        (
            external(succeeded="{field: status.a}"),
            "external.succeeded: has a field without a value; expected equals too",
        ),
        (
            external(succeeded="{condition: A, equals: b}"),
            "external.succeeded.equals: is about a field; expected field too",
        ),
        (external(succeeded="{field: a..b, equals: b}"), "external.succeeded.field: "),
        (external(succeeded="{condition: A, status: yes-no}"), "external.succeeded.status: "),
        (external(version="V1"), 'template.apiVersion: "V1"; expected "GROUP/VERSION"'),
        (external(version="a/b/v1"), "template.apiVersion: "),
        (external(object="repairs"), 'template.kind: "repairs"; expected an object'),
        (external(metadata="{uid: x}"), "template.metadata.uid: can't be set; expected name, name"),
        (external(metadata="[a]"), "template.metadata: a list; expected name, namespace"),
        (
            external(metadata='{namespace: "{node}"}'),
            'template.metadata.namespace: "{node}"; expected the name of one namespace',
        ),
        (external(metadata="{namespace: ../x}"), "template.metadata.namespace: "),
        (
            external(metadata="{name: same}"),
            'metadata.name: "same" is the same for every node; expected one of {operation}',
        ),
        (external(metadata='{name: "{node}/x"}'), "metadata.name: "),
        (external(metadata='{name: "{node}-{reason}"}'), "expected none but {operation}"),
        (external(metadata="{labels: {a: 1}}"), "metadata.labels: a section; expected keys with"),
        (
            external(spec='{a: [{b: "{nod}"}]}'),
            'template.spec.a[0].b: no value is filled in for "{nod}" (did you mean "{node}"?)',
        ),
        (
            external(spec='{a: "{node-uid}"}'),
            'template.spec.a: no value is filled in for "{node-uid}" (did you mean "{node_uid}"?)',
        ),
        (external(spec='{"{node}": x}'), "has a placeholder in the key"),
        (external(spec="{a: 2026-11-25}"), "spec.a: "),
    ],
)
def test_a_mistake_about_objects_is_named_with_its_key(
    tmp_path: Path, text: str, reply: str
) -> None:
    (found,) = problems(tmp_path, text, KUBERNETES)
    assert ".yaml:" in found
    assert reply in found
    assert "expected" in found


@pytest.mark.parametrize(
    "text",
    [
        "repair: {repairers: [{kind: replace, karpenter: true}]}",
        "repair: {repairers: [{kind: replace, cluster_api: true}]}",
        external(),
    ],
)
def test_a_cluster_without_objects_has_no_such_repairers(tmp_path: Path, text: str) -> None:
    (found,) = problems(tmp_path, text)
    assert 'needs an API server, and cluster.kind is not "kubernetes"; expected command' in found


def test_a_status_without_quotes_is_read_as_it_is_meant(tmp_path: Path) -> None:
    text = external(
        succeeded="{condition: A, status: False}", failed="{field: status.ok, equals: false}"
    )
    one = present(loaded(tmp_path, text, KUBERNETES).repairers[0].external)
    assert one.succeeded is not None
    assert one.failed is not None
    assert (one.succeeded.status, one.failed.equals) == ("False", "false")
