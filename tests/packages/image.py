"""An image in buildah's store: its configuration, its root, and commands in it by runc."""

import json
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self


def output(*command: str | Path) -> str:
    """A command's output; an assertion with what it said where it failed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


class Image:
    """Use it as a context manager: a working container, whose root is ``root``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.config: Mapping[str, Any] = json.loads(
            output("buildah", "inspect", "--type=image", name)
        )["OCIv1"]["config"]

    def __enter__(self) -> Self:
        self._container = output("buildah", "from", "--pull-never", self.name)
        self.root = Path(output("buildah", "mount", self._container))
        return self

    def __exit__(self, *_: object) -> None:
        output("buildah", "rm", self._container)

    def container(
        self, arguments: Sequence[str], folder: Path, *, mounts: Mapping[str, Path] | None = None
    ) -> "Container":
        """The image's program with these arguments; ``mounts`` are writable folders of ours."""
        return Container(self, arguments, folder, mounts or {})

    def run(self, *arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
        """The image's program with these arguments, to its end."""
        with self.container(arguments, folder) as container:
            code = container.process.wait(120)
        text = container.log.read_text()
        return subprocess.CompletedProcess(list(arguments), code, text, text)


class Container:
    """The image's entry point under runc: its user and environment, a read-only root, no rights."""

    def __init__(
        self, image: Image, arguments: Sequence[str], folder: Path, mounts: Mapping[str, Path]
    ) -> None:
        self._folder = folder / f"container-{uuid.uuid4().hex[:8]}"
        self._name = f"sickbay-image-{uuid.uuid4().hex[:8]}"
        self._config = _configuration(image, arguments, mounts)
        self.log = self._folder / "log"

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        (self._folder / "config.json").write_text(json.dumps(self._config))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self._runc, "run", "--bundle", self._folder, self._name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            subprocess.run([*self._runc, "kill", self._name, "KILL"], check=False)
            self.process.wait(30)
        subprocess.run(
            [*self._runc, "delete", "--force", self._name], check=False, capture_output=True
        )

    def python(self, code: str) -> "subprocess.CompletedProcess[str]":
        """Run code with the image's Python, in the container's own network."""
        command = [*self._runc, "exec", self._name, "/opt/sickbay/bin/python", "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    @property
    def _runc(self) -> list[str]:
        return ["runc", "--root", str(self._folder / "state")]


def _configuration(
    image: Image, arguments: Sequence[str], mounts: Mapping[str, Path]
) -> dict[str, Any]:
    user, _, group = image.config.get("User", "").partition(":")
    plain = ["nosuid", "noexec", "nodev"]
    return {
        "ociVersion": "1.0.2",
        "root": {"path": str(image.root), "readonly": True},
        "process": {
            "user": {"uid": int(user or 0), "gid": int(group or 0)},
            "args": [*image.config["Entrypoint"], *arguments],
            "env": image.config["Env"],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": {"bounding": [], "effective": [], "permitted": []},
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": plain},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*plain, "ro"]},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": plain},
            {"destination": "/run", "type": "tmpfs", "source": "tmpfs", "options": plain},
            *(
                {"destination": at, "source": str(source), "options": ["rbind", "rw"]}
                for at, source in mounts.items()
            ),
        ],
        "linux": {
            "namespaces": [{"type": each} for each in ("mount", "pid", "ipc", "uts", "network")]
        },
    }
