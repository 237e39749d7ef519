"""The command line of every server of the plane."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane import audit
from tests.controlplane.pki import KeyPair

STAGES_FILE = Path(__file__).with_name("stages.yaml")
KUBELET_LABEL = "sickbay.test/kubelet"
ISSUER = "https://kubernetes.default.svc.cluster.local"
_LOOPBACK = "127.0.0.1"
#: Unused kinds: volumes, certificates, resource claims, scaling, and legacy kinds. Some have
#: loops of a tenth of a second, and all follow nodes, pods or kinds of their own. Node lifecycle
#: would evict pods in the middle of a test.
_WITHOUT_CONTROLLERS = [
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "certificatesigningrequest-signing-controller",
    "cronjob-controller",
    "endpointslice-mirroring-controller",
    "ephemeral-volume-controller",
    "horizontal-pod-autoscaler-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "node-ipam-controller",
    "node-lifecycle-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-expander-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "replicationcontroller-controller",
    "resourceclaim-controller",
    "storageversion-garbage-collector-controller",
    "ttl-controller",
]
# As fast as the server lets them: the defaults (20 a second) would be what a test measures.
_UNTHROTTLED = ["--kube-api-qps=1000", "--kube-api-burst=2000"]


@dataclass(frozen=True, slots=True)
class Setting:
    """Where everything of one plane is. Ports are of 127.0.0.1."""

    folder: Path
    ca_file: Path
    serving: KeyPair
    service_account_key: Path
    service_account_public: Path
    audit_log: Path
    etcd_port: int
    etcd_peer_port: int
    apiserver_port: int


@dataclass(frozen=True, slots=True)
class Options:
    """Which servers a plane has; see plane.ControlPlane."""

    controller_manager: bool
    scheduler: bool
    kwok: bool
    apiserver_args: Sequence[str]

    def programs(self) -> list[str]:
        """The programs in the order in which they start."""
        return [
            "etcd",
            "kube-apiserver",
            *(["kube-controller-manager"] if self.controller_manager else []),
            *(["kube-scheduler"] if self.scheduler else []),
            *(["kwok"] if self.kwok else []),
        ]


def command_lines(
    options: Options,
    programs: Mapping[str, Path],
    at: Setting,
    ports: Mapping[str, int],
    kubeconfig: Callable[[str], Path],
) -> dict[str, list[str | Path]]:
    """Every server's command line by its name. `kubeconfig` makes one for a component's user."""
    lines = {
        "etcd": etcd(programs["etcd"], at),
        "kube-apiserver": apiserver(programs["kube-apiserver"], at, options),
    }
    if options.controller_manager:
        name = "kube-controller-manager"
        config = kubeconfig(f"system:{name}")
        lines[name] = controller_manager(programs[name], at, config, ports[name])
    if options.scheduler:
        name = "kube-scheduler"
        lines[name] = scheduler(programs[name], at, kubeconfig(f"system:{name}"), ports[name])
    if options.kwok:
        lines["kwok"] = kwok(programs["kwok"], kubeconfig("kwok"), ports["kwok"])
    return lines


def etcd(program: Path, at: Setting) -> list[str | Path]:
    """One member, no fsync: the data needn't survive the machine, only the process."""
    client, peer = f"http://{_LOOPBACK}:{at.etcd_port}", f"http://{_LOOPBACK}:{at.etcd_peer_port}"
    return [
        program,
        "--name=only",
        f"--data-dir={at.folder / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=only={peer}",
        # Benchmarks write more between two compactions than the default 2 GiB hold.
        "--quota-backend-bytes=8589934592",
        "--log-level=warn",
    ]


def apiserver(program: Path, at: Setting, options: Options) -> list[str | Path]:
    """RBAC, Node and NodeRestriction as in a real cluster."""
    # New nodes would get the not-ready taint, which no controller removes.
    disabled = ["TaintNodesByCondition"]
    if not options.controller_manager:
        # Pods would need `default` ServiceAccounts, which no controller creates.
        disabled.append("ServiceAccount")
    return [
        program,
        f"--etcd-servers=http://{_LOOPBACK}:{at.etcd_port}",
        f"--bind-address={_LOOPBACK}",
        f"--secure-port={at.apiserver_port}",
        f"--cert-dir={at.folder / 'apiserver'}",
        f"--tls-cert-file={at.serving.certificate}",
        f"--tls-private-key-file={at.serving.key}",
        f"--client-ca-file={at.ca_file}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--disable-admission-plugins={','.join(disabled)}",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={at.service_account_public}",
        f"--service-account-signing-key-file={at.service_account_key}",
        f"--api-audiences={ISSUER}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--allow-privileged=true",
        # A loopback address may not be an endpoint of the `kubernetes` Service.
        "--endpoint-reconciler-type=none",
        f"--audit-policy-file={audit.POLICY_FILE}",
        f"--audit-log-path={at.audit_log}",
        "--audit-log-maxsize=100000",  # MB: a mark is an offset into one file
        *options.apiserver_args,
    ]


def controller_manager(program: Path, at: Setting, kubeconfig: Path, port: int) -> list[str | Path]:
    """The controllers that tests use."""
    return [
        *_controller(program, at, kubeconfig, port),
        f"--controllers=*,{','.join(f'-{name}' for name in _WITHOUT_CONTROLLERS)}",
        f"--service-account-private-key-file={at.service_account_key}",
        f"--root-ca-file={at.ca_file}",
    ]


def scheduler(program: Path, at: Setting, kubeconfig: Path, port: int) -> list[str | Path]:
    """The default scheduler."""
    return _controller(program, at, kubeconfig, port)


def kwok(program: Path, kubeconfig: Path, port: int) -> list[str | Path]:
    """Plays every node's kubelet except those that a test has sent away."""
    return [
        program,
        f"--kubeconfig={kubeconfig}",
        f"--config={STAGES_FILE}",
        f"--manage-nodes-with-label-selector={KUBELET_LABEL}!=away",
        "--node-lease-duration-seconds=0",
        f"--server-address={_LOOPBACK}:{port}",
    ]


def _controller(program: Path, at: Setting, kubeconfig: Path, port: int) -> list[str | Path]:
    return [
        program,
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        f"--bind-address={_LOOPBACK}",
        f"--secure-port={port}",
        f"--tls-cert-file={at.serving.certificate}",
        f"--tls-private-key-file={at.serving.key}",
        *_UNTHROTTLED,
    ]
