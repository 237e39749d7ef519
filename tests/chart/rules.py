"""Where the chart's values stand in the manifests: the edits of each object of deploy/kubernetes.

All else of an object is the same in the chart and for kustomize.
"""

from collections.abc import Callable

from tests.chart.manifest_edits import ManifestText, Path
from tests.support.yaml_documents import read_yaml

Key = tuple[str, str]
POD: Path = ("spec", "template", "spec")


def _image(program: str) -> str:
    digest = f".Values.image.{program.removeprefix('sickbay-')}Digest"
    return f'{{{{ include "sickbay.image" (list . "{program}" {digest}) }}}}'


def _to_yaml(value: str, column: int) -> str:
    return f"toYaml {value} | nindent {column}"


def _merged_resources(path: Path, value: str, text: ManifestText, shipped: str) -> None:
    merged = f"mustMergeOverwrite ({shipped}) (deepCopy {value})"
    lines = [
        f"{{{{- $resources := {merged} }}}}",
        '{{- include "sickbay.dropNulls" $resources }}',
        "{{- toYaml $resources | nindent 12 }}",
    ]
    text.set_block((*path, "resources"), [f"{' ' * 12}{line}" for line in lines])


def _pod(text: ManifestText, container: Path, program: str, values: str) -> None:
    """Edits that the pods of a StatefulSet and of a DaemonSet share."""
    _placement(text, container, program, values)
    _more(text, ("spec", "template", "metadata", "labels", _COMPONENT), f"{values}.podLabels", 8)
    _more(text, (*container, "env", ("name", "POD_NAMESPACE")), f"{values}.extraEnv", 12)
    more = (
        "{{{{- with {0}.{1} }}}}",
        "{{{{- toYaml . | nindent {2} }}}}",
        "{{{{- end }}}}",
    )
    mounts = (*container, "volumeMounts")
    for path, key, column in (
        (mounts, "extraVolumeMounts", 12),
        ((*POD, "volumes"), "extraVolumes", 8),
    ):
        text.insert_after(path, ["  " + line.format(values, key, column) for line in more])


def _placement(text: ManifestText, container: Path, program: str, values: str) -> None:
    """What decides whether the pods get their image, and on which nodes they run."""
    text.set_value((*container, "image"), _image(program))
    text.set_value((*container, "imagePullPolicy"), "{{ .Values.image.pullPolicy }}")
    text.guard((*POD, "priorityClassName"), f"{values}.priorityClassName")
    text.set_value((*POD, "priorityClassName"), f"{{{{ {values}.priorityClassName | quote }}}}")
    text.set_items((*POD, "nodeSelector"), _to_yaml(f"{values}.nodeSelector", 8))
    pull = [
        "{{- with .Values.image.pullSecrets }}",
        "imagePullSecrets:",
        "  {{- toYaml . | nindent 8 }}",
        "{{- end }}",
    ]
    text.insert_after((*POD, "enableServiceLinks"), pull)
    _affinity(text, values)


def _more(text: ManifestText, path: Path, value: str, column: int) -> None:
    """The items of a value follow the entry at ``path``."""
    lines = [f"{{{{- with {value} }}}}", f"{{{{- toYaml . | nindent {column} }}}}", "{{- end }}"]
    text.insert_after(path, lines)


def _affinity(text: ManifestText, values: str) -> None:
    text.guard(
        (*POD, "affinity"),
        f'kindIs "invalid" {values}.affinity',
        ["      affinity:", f"        {{{{- toYaml {values}.affinity | nindent 8 }}}}"],
    )


def _account(values: str) -> Callable[[ManifestText], None]:
    def edit(text: ManifestText) -> None:
        lines = [
            f"{{{{- with {values}.serviceAccount.annotations }}}}",
            "annotations:",
            "  {{- toYaml . | nindent 4 }}",
            "{{- end }}",
        ]
        text.insert_after(("metadata", "labels"), lines)

    return edit


def _stop(text: ManifestText) -> None:
    # The stop of a person must outlive an uninstall: the aggregator runs for moments longer.
    text.insert_after(("metadata", "labels"), ["annotations:", "  helm.sh/resource-policy: keep"])


def _aggregator_config(text: ManifestText) -> None:
    config = '    {{- include "sickbay.aggregatorConfig" . | nindent 4 }}'
    text.set_block(("data", "aggregator.yaml"), [config], marker="|")


def _aggregator(text: ManifestText) -> None:
    container: Path = (*POD, "containers", ("name", "aggregator"))
    values = ".Values.aggregator"
    text.set_value(("spec", "replicas"), '{{ include "sickbay.replicas" . }}')
    text.insert_after(
        ("spec", "template", "metadata", "annotations", _SAFE),
        [
            'checksum/config: {{ include "sickbay.aggregatorConfig" . | sha256sum }}',
            "{{- with .Values.aggregator.podAnnotations }}",
            "{{- toYaml . | nindent 8 }}",
            "{{- end }}",
        ],
    )
    _pod(text, container, "sickbay-aggregator", values)
    text.set_value((*POD, "tolerations"), f"{{{{ toJson {values}.tolerations }}}}")
    spread = [
        f"{{{{- with {values}.topologySpreadConstraints }}}}",
        "topologySpreadConstraints:",
        "  {{- toYaml . | nindent 8 }}",
        "{{- end }}",
    ]
    text.insert_after((*POD, "tolerations"), spread)
    memory = '(ternary "1280Mi" "512Mi" (eq .Values.profile "large"))'
    shipped = (
        f'dict "requests" (dict "cpu" "500m" "memory" {memory}) "limits" (dict "memory" "2Gi")'
    )
    _merged_resources(container, f"{values}.resources", text, shipped)
    tls = (*POD, "volumes", ("name", "tls"), "secret", "secretName")
    text.set_value(tls, "{{ .Values.certificates.secretName | quote }}")
    # With certificates of the user's own, pods wait for them.
    automatic = '{{ ne .Values.certificates.source "provided" }}'
    text.set_value((*tls[:-1], "optional"), automatic)
    ca = (*POD, "volumes", ("name", "ca"), "configMap", "optional")
    text.set_value(ca, automatic)
    data: Path = (*POD, "volumes", ("name", "data"))
    text.guard(data, f"not {values}.persistence.enabled")
    text.insert_after(
        data,
        [
            "{{- if .Values.history.database }}",
            "# Read at each connection, so that a new password needs no restart.",
            "- name: history",
            "  secret:",
            "    secretName: {{ .Values.history.secretName | quote }}",
            "    defaultMode: 0440",
            "{{- end }}",
        ],
    )
    text.insert_after(
        (*container, "volumeMounts", ("name", "data")),
        [
            "{{- if .Values.history.database }}",
            "- name: history",
            "  mountPath: /etc/sickbay-history",
            "  readOnly: true",
            "{{- end }}",
        ],
    )
    text.insert_after(
        ("spec", "template"),
        [
            f"{{{{- if {values}.persistence.enabled }}}}",
            "volumeClaimTemplates:",
            "  - apiVersion: v1",
            "    kind: PersistentVolumeClaim",
            "    metadata:",
            "      name: data",
            "      labels:",
            "        app.kubernetes.io/name: sickbay",
            "        app.kubernetes.io/component: aggregator",
            "    spec:",
            "      accessModes: [ReadWriteOnce]",
            f"      {{{{- with {values}.persistence.storageClassName }}}}",
            "      storageClassName: {{ . | quote }}",
            "      {{- end }}",
            "      resources:",
            "        requests:",
            f"          storage: {{{{ {values}.persistence.size }}}}",
            "{{- end }}",
        ],
    )


_COMPONENT = "app.kubernetes.io/component"
_SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict"


def _agent_config(text: ManifestText) -> None:
    table = 'dict "table" (include "sickbay.agentConfig" . | fromYaml) "path" ""'
    config = f'    {{{{- include "sickbay.toml" ({table}) | trim | nindent 4 }}}}'
    text.set_block(("data", "agent.toml"), [config], marker="|")


def _agent(text: ManifestText) -> None:
    container: Path = (*POD, "containers", ("name", "agent"))
    values = ".Values.agent"
    text.set_value(
        ("spec", "updateStrategy", "rollingUpdate", "maxUnavailable"),
        f"{{{{ {values}.maxUnavailable }}}}",
    )
    text.insert_after(
        ("spec", "template", "metadata", "labels"),
        [
            "annotations:",
            '  checksum/config: {{ include "sickbay.agentConfigAtStart" . | sha256sum }}',
            f"  {{{{- with {values}.podAnnotations }}}}",
            "  {{- toYaml . | nindent 8 }}",
            "  {{- end }}",
        ],
    )
    _pod(text, container, "sickbay-agent", values)
    _agent_metrics(text, container)
    text.set_items((*POD, "tolerations"), _to_yaml(f"{values}.tolerations", 8))
    text.set_value((*POD, "hostPID"), f"{{{{ not {values}.restricted }}}}")
    text.insert_after(
        (*POD, "hostPID"),
        [
            f"{{{{- if {values}.restricted }}}}",
            "securityContext:",
            "  seccompProfile:",
            "    type: RuntimeDefault",
            "{{- end }}",
        ],
    )
    privileged: Path = (*container, "securityContext", "privileged")
    text.guard(
        privileged,
        f"not {values}.restricted",
        [
            "            privileged: false",
            "            allowPrivilegeEscalation: false",
            "            capabilities:",
            "              drop: [ALL]",
        ],
    )
    text.guard((*container, "volumeMounts", ("name", "dev")), f"not {values}.restricted")
    text.guard((*POD, "volumes", ("name", "dev")), f"not {values}.restricted")
    shipped = 'dict "requests" (dict "cpu" "10m" "memory" "64Mi") "limits" (dict "memory" "256Mi")'
    _merged_resources(container, f"{values}.resources", text, shipped)


def _agent_metrics(text: ManifestText, container: Path) -> None:
    """The port for Prometheus, as deploy/profiles/agent-metrics has it."""
    port = ".Values.monitoring.agents.port"

    def more(path: Path, *lines: str) -> None:
        on = "{{- if .Values.monitoring.agents.enabled }}"
        text.insert_after(path, [on, *lines, "{{- end }}"])

    more(
        (*container, "env", ("name", "AGGREGATOR_ADDRESS")),
        "- name: METRICS_LISTEN",
        f'  value: {{{{ printf "0.0.0.0:%d" (int {port}) | quote }}}}',
        "- name: METRICS_TOKEN_FILE",
        "  value: /var/run/secrets/sickbay-metrics/token",
    )
    more(
        (*container, "env"),
        "ports:",
        "  - name: metrics",
        f"    containerPort: {{{{ int {port} }}}}",
        f"    hostPort: {{{{ int {port} }}}}",
    )
    more(
        (*container, "volumeMounts", ("name", "token")),
        "- name: metrics-token",
        "  mountPath: /var/run/secrets/sickbay-metrics",
        "  readOnly: true",
    )
    more(
        (*POD, "volumes", ("name", "token")),
        "- name: metrics-token",
        "  secret:",
        "    secretName: sickbay-agent-metrics",
        "    defaultMode: 0400",
        "    items:",
        "      - key: token",
        "        path: token",
    )


def _prober(text: ManifestText) -> None:
    container: Path = (*POD, "containers", ("name", "prober"))
    _placement(text, container, "sickbay-agent", ".Values.agent")
    text.set_items((*POD, "tolerations"), _to_yaml(".Values.agent.tolerations", 8))
    text.guard((), ".Values.podNetworkProber.enabled")


def _network_policy(text: ManifestText) -> None:
    text.guard((), ".Values.networkPolicy.enabled")
    text.set_block(
        ("spec", "ingress", 0, "from"),
        [
            "        {{- range .Values.networkPolicy.agentCIDRs }}",
            "        - ipBlock:",
            "            cidr: {{ . | quote }}",
            "        {{- end }}",
        ],
    )


def _aggregator_policy(text: ManifestText) -> None:
    # A write that the configuration asks for and the policy denies would fail at each fault.
    for name in ("ownConditions", "ownTaints", "ownNotices"):
        variable: Path = ("spec", "variables", ("name", name), "expression")
        text.set_value(variable, f'{{{{ include "sickbay.{name}" . | quote }}}}')


def _unless_left_out(reconciler: str) -> str:
    """The condition: the configuration does not leave it out."""
    config = '(include "sickbay.aggregatorConfig" . | fromYaml)'
    return f'dig "reconcilers" "{reconciler}" true {config}'


def _aggregator_rights(text: ManifestText) -> None:
    text.guard(("rules", _rule_of(text, "pods/eviction")), _unless_left_out("drain"))
    for subject in ("operations", "operations/status", "operations.sickbay.dev"):
        text.guard(("rules", _rule_of(text, subject)), _unless_left_out("operations"))


def _rule_of(text: ManifestText, subject: str) -> int:
    """The position of the rule about this resource, or about the object of this name."""
    rules = read_yaml(text.text)["rules"]
    (found,) = (
        at
        for at, rule in enumerate(rules)
        if [subject] in (rule["resources"], rule.get("resourceNames"))
    )
    return found


def _events(text: ManifestText) -> None:
    text.guard((), _unless_left_out("publish"))


def _crd(text: ManifestText) -> None:
    text.guard((), ".Values.crds.enabled")
    text.insert_after(("metadata", "labels"), ["annotations:", "  helm.sh/resource-policy: keep"])


def _monitor(text: ManifestText) -> None:
    more = [
        "{{- with .Values.monitoring.labels }}",
        "{{- toYaml . | nindent 4 }}",
        "{{- end }}",
    ]
    text.insert_after(("metadata", "labels", "app.kubernetes.io/component"), more)


def _test_jobs(text: ManifestText) -> None:
    text.set_value(("metadata", "namespace"), "{{ .Values.repair.rbac.jobs | quote }}")


#: The edits of one object. An object without an entry is the same with all values.
OBJECTS: dict[Key, Callable[[ManifestText], None]] = {
    ("ConfigMap", "sickbay-stop"): _stop,
    ("ConfigMap", "sickbay-aggregator"): _aggregator_config,
    ("StatefulSet", "sickbay-aggregator"): _aggregator,
    ("ConfigMap", "sickbay-agent"): _agent_config,
    ("ServiceAccount", "sickbay-agent"): _account(".Values.agent"),
    ("ServiceAccount", "sickbay-aggregator"): _account(".Values.aggregator"),
    ("DaemonSet", "sickbay-agent"): _agent,
    ("DaemonSet", "sickbay-pod-prober"): _prober,
    ("NetworkPolicy", "sickbay-aggregator"): _network_policy,
    ("ClusterRole", "sickbay-aggregator"): _aggregator_rights,
    ("Role", "sickbay-aggregator-events"): _events,
    ("RoleBinding", "sickbay-aggregator-events"): _events,
    ("CustomResourceDefinition", "quarantines.sickbay.dev"): _crd,
    ("CustomResourceDefinition", "operations.sickbay.dev"): _crd,
    ("PodMonitor", "sickbay-agent"): _monitor,
    ("PodMonitor", "sickbay-aggregator"): _monitor,
    ("ServiceMonitor", "sickbay-aggregator"): _monitor,
    ("ValidatingAdmissionPolicy", "sickbay-aggregator"): _aggregator_policy,
    ("Role", "sickbay-repair-jobs"): _test_jobs,
    ("RoleBinding", "sickbay-repair-jobs"): _test_jobs,
}

#: Files whose objects are all there by one value.
FILES = {
    "agent-metrics.yaml": ".Values.monitoring.agents.enabled",
    "admission-policies.yaml": ".Values.admissionPolicies.enabled",
    "flowcontrol.yaml": ".Values.flowControl.enabled",
    "quota.yaml": ".Values.criticalPodsQuota.enabled",
    "pod-monitor.yaml": 'eq .Values.monitoring.scrape "PodMonitor"',
    "repair-karpenter.yaml": ".Values.repair.rbac.karpenter",
    "repair-cluster-api.yaml": ".Values.repair.rbac.clusterApi",
    "repair-jobs.yaml": ".Values.repair.rbac.jobs",
    "service-monitor.yaml": 'eq .Values.monitoring.scrape "ServiceMonitor"',
}

#: Helm installs into a namespace that it makes itself (--create-namespace).
LEFT_OUT = {("Namespace", "sickbay")}
