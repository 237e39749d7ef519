"""A pod's container on this machine, through runc: the call that containerd would make for the pod.

The image is this machine's own root under an overlay in memory, so that programs and this tree are
there and no write of the container stays. hostPath volumes are the machine's real paths unless told
otherwise. Capabilities, the device cgroup, namespaces, mounts and their propagation are as a
kubelet and containerd set them for a privileged container, and for one that is not.
"""

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.deploy.manifests import ROOT, container, mounts

#: Devices that every container gets without asking.
_DEFAULT_DEVICES = [
    {"allow": False, "access": "rwm"},
    *(
        {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rwm"}
        for major, minor in ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2), (136, None))
    ),
]
#: The bytecode of this tree and its libraries, which an image has: without it, each start of a
#: program compiles each module.
_BYTECODE = ROOT / "build" / "pycache"
_PROPAGATION = {"HostToContainer": "rslave", "Bidirectional": "rshared"}


def missing() -> str:
    """Why no container can be had here; empty when one can."""
    if os.geteuid() != 0:
        return "only root can start a container"
    return "" if shutil.which("runc") else "runc is not installed (tests/setup-debian.sh)"


@functools.cache
def _compile_agent(optimize: str) -> None:
    """Write the bytecode of the modules that a start of the agent imports."""
    load = "from tests.support.agent_programs import load_agent_with_uplink as load; load()"
    own = {"PYTHONPYCACHEPREFIX": str(_BYTECODE), "PYTHONOPTIMIZE": optimize}
    kept = {key: text for key, text in os.environ.items() if not key.startswith("PYTHON")}
    subprocess.run([sys.executable, "-c", load], cwd=ROOT, env=kept | own, check=True)


class Container:
    """Runs ``command`` as the pod's container until the end of the block.

    ``volumes`` are the folders that play volumes, by the volume's name; hostPath volumes that it
    lacks are the real ones. The command runs with the container's mounts, not its own argument
    list: an image would bring another Python at another path. ``hostname`` is the pod's name; by
    default this machine's. ``network`` is a network that is there already, as a file.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        command: list[str],
        *,
        volumes: Mapping[str, Path],
        folder: Path,
        environ: Mapping[str, str],
        hostname: str = "",
        network: Path | None = None,
    ) -> None:
        self._hostname = hostname
        self._network = network
        self._spec = spec
        self._volumes = volumes
        self._folder = folder
        self._name = f"sickbay-test-{uuid.uuid4().hex[:8]}"
        self._root = folder / "memory" / "root"
        self._process: subprocess.Popen[bytes] | None = None
        self._made: list[Path] = []
        self.log = folder / "container.log"
        if "PYTHONOPTIMIZE" in environ:
            _compile_agent(environ["PYTHONOPTIMIZE"])
        self._config = self._config_of(command, {**environ, "PYTHONPYCACHEPREFIX": str(_BYTECODE)})

    def __enter__(self) -> Self:
        memory = self._folder / "memory"
        memory.mkdir()
        _do("mount", "-t", "tmpfs", "sickbay-test", str(memory))
        for name in ("upper", "work", "root"):
            (memory / name).mkdir()
        self._make_mount_points()
        layers = f"lowerdir=/,upperdir={memory}/upper,workdir={memory}/work"
        _do("mount", "-t", "overlay", "overlay", "-o", layers, str(self._root))
        for folder in _image_folders():
            # Any user can reach an image's Python. The overlay takes the change.
            for parent in list(Path(folder).parents)[:-1]:
                inside = self._root / parent.relative_to("/")
                inside.chmod(inside.stat().st_mode | 0o111)
        bundle = memory / "bundle"
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(self._config))
        command = ["runc", "--root", str(memory / "state"), "run", "--bundle", str(bundle)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, self._name], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self.signal("KILL")
            self._process.wait(300)
        self._runc("delete", "--force", self._name, check=False)
        for path in (self._root, self._folder / "memory"):
            _do("umount", "--lazy", str(path))
        for path in reversed(self._made):
            with contextlib.suppress(OSError):  # it is in use by now
                path.rmdir()

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run another command in the container."""
        return self._runc("exec", self._name, *command, check=False)

    def signal(self, name: str) -> None:
        self._runc("kill", self._name, name, check=False)

    def ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def wait(self, timeout: float) -> int:
        """The exit code of its process."""
        assert self._process is not None
        return self._process.wait(timeout)

    def _runc(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        state = self._folder / "memory" / "state"
        command = ["runc", "--root", str(state), *arguments]
        return subprocess.run(command, check=check, capture_output=True, text=True, timeout=300)

    # -- the pod, as the runtime's configuration ---------------------------------------------------

    def _config_of(self, command: list[str], environ: dict[str, str]) -> dict[str, Any]:
        context = (
            self._spec.get("securityContext", {}) | container(dict(self._spec))["securityContext"]
        )
        privileged = context.get("privileged", False)
        capabilities = _own_capabilities() if privileged else []
        namespaces = ["mount", "ipc", "uts"]
        namespaces += [] if self._spec.get("hostPID") else ["pid"]
        namespaces += [] if self._spec.get("hostNetwork") or self._network else ["network"]
        devices = [{"allow": True, "access": "rwm"}] if privileged else _DEFAULT_DEVICES
        return {
            "ociVersion": "1.0.2",
            **({"hostname": self._hostname} if self._hostname else {}),
            "root": {"path": str(self._root), "readonly": context["readOnlyRootFilesystem"]},
            "process": {
                "user": {"uid": context.get("runAsUser", 0), "gid": context.get("runAsGroup", 0)},
                "args": command,
                "env": [f"{key}={value}" for key, value in environ.items()],
                "cwd": "/",
                "noNewPrivileges": not context.get("allowPrivilegeEscalation", True),
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            },
            "mounts": [
                *_system_mounts(privileged=privileged),
                *self._volume_mounts(),
                *_image_mounts(),  # last: a volume at /tmp must not hide a tree that lies there
            ],
            "linux": {
                "namespaces": [
                    *({"type": each} for each in namespaces),
                    *([{"type": "network", "path": str(self._network)}] if self._network else []),
                ],
                "resources": {"devices": devices},
                "rootfsPropagation": "rslave",
                "maskedPaths": [] if privileged else ["/proc/kcore", "/proc/keys"],
                "readonlyPaths": [] if privileged else ["/proc/sys", "/proc/sysrq-trigger"],
            },
        }

    def _make_mount_points(self) -> None:
        """Make the folders at which a volume lies within another: the kubelet makes the host's."""
        there = {Path(each["destination"]): Path(each["source"]) for each in self._volume_mounts()}
        for at in there:
            outer = next((each for each in at.parents if each in there), None)
            if outer is None:
                continue
            inside = there[outer] / at.relative_to(outer)
            absent = [each for each in (inside, *inside.parents) if not each.exists()]
            for each in reversed(absent):
                each.mkdir()
                self._made.append(each)

    def _volume_mounts(self) -> list[dict[str, Any]]:
        found = []
        for at, (mount, volume) in sorted(mounts(dict(self._spec)).items()):
            source = self._volumes.get(mount["name"]) or volume["hostPath"]["path"]
            propagation = _PROPAGATION.get(mount.get("mountPropagation", ""), "rprivate")
            options = ["rbind", propagation, "ro" if mount.get("readOnly") else "rw"]
            found.append({"destination": at, "source": str(source), "options": options})
        # The kubelet's file for last words, at the path that the pod names.
        words = self._folder / "termination-log"
        words.touch()
        path = container(dict(self._spec)).get("terminationMessagePath", "/dev/termination-log")
        found.append({"destination": path, "source": str(words), "options": ["rbind", "rw"]})
        return found


def _system_mounts(*, privileged: bool) -> list[dict[str, Any]]:
    how = ["nosuid", "noexec", "nodev"]
    sys_options = [*how, "rw" if privileged else "ro"]
    return [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": how},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
        },
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": sys_options},
    ]


def _image_mounts() -> list[dict[str, Any]]:
    """The files of an image, where they are on a filesystem of their own: Python, and this tree."""
    return [
        {"destination": each, "source": each, "options": ["rbind", "rprivate", "ro"]}
        for each in _image_folders()
    ]


def _image_folders() -> list[str]:
    return sorted({str(ROOT), sys.prefix, sys.base_prefix})


#: capabilities(7), by number.
_CAPABILITIES = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
    NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO
    SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME
    SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG
    WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""


def _own_capabilities() -> list[str]:
    """All that can be given: those of this process."""
    status = Path("/proc/self/status").read_text()
    [mask] = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapPrm")]
    return [
        f"CAP_{name}" for number, name in enumerate(_CAPABILITIES.split()) if mask >> number & 1
    ]


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=300)
