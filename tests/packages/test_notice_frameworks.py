"""Examples of drain.notice with the frameworks themselves: Debian's PyTorch, and Ray of PyPI."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.waiting import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "deploy" / "examples" / "notice"
RAY = ROOT / "build" / "ray-env" / "bin"
#: Debian's, which has PyTorch.
PYTHON = "/usr/bin/python3"
REQUESTED = "sickbay.dev/eviction-requested"
LEFT_WORK = 75
#: Ray takes another address of the machine for 127.0.0.1. The ports are the example's.
HEAD = "127.0.0.2"


def has_torch() -> bool:
    done = subprocess.run(
        [PYTHON, "-c", "import torch.distributed"], check=False, capture_output=True
    )
    return done.returncode == 0


def notice(file: Path) -> None:
    """The notice as the kubelet's downward API writes it, in one step."""
    text = json.dumps({"id": "0123456789abcdef", "deadline": "2100-01-01T00:00:00Z"})
    new = file.with_suffix(".new")
    new.write_text(f"{REQUESTED}={json.dumps(text)}")
    new.rename(file)


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(
    stack: ExitStack, command: list[str], log: Path, **environment: str
) -> "subprocess.Popen[bytes]":
    """In a session of its own, which ends with the test."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()

    stack.callback(end)
    return process


@pytest.mark.skipif(not has_torch(), reason="python3-torch is not installed (make test-packages)")
def test_all_ranks_of_a_real_torchrun_leave_after_the_same_step(
    tmp_path: Path, processes: ExitStack
) -> None:
    programs, left, info = tmp_path / "bin", tmp_path / "left", tmp_path / "annotations"
    programs.mkdir()
    # Debian has the module, and no program of this name. Its 1.13 spells the option so alone, and
    # on Python 3.11 has no default for these two.
    run = f'#!/bin/sh\nexec {PYTHON} -m torch.distributed.run --redirects=1 --tee=1 "$@"\n'
    (programs / "torchrun").write_text(run)
    (programs / "torchrun").chmod(0o755)
    manifest: dict[str, Any] = yaml.safe_load((EXAMPLES / "torchrun-job.yaml").read_text("utf-8"))
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    text = container["args"][0].replace("/sickbay/", f"{EXAMPLES}/").replace("/tmp/left", str(left))
    log = tmp_path / "torchrun.log"
    info.write_text("")
    trainer = start(
        processes,
        [*container["command"], text.replace("--nproc-per-node=8", "--nproc_per_node=3")],
        log,
        PATH=f"{programs}:{os.environ['PATH']}",
        CHECKPOINTS=str(tmp_path),
        LEFT_FILE=str(left),
        PODINFO_FILE=str(info),
        BACKEND="gloo",
        NOTICE_EVERY="0.2",
        OMP_NUM_THREADS="1",
    )
    notice(info)
    wait_until(lambda: trainer.poll() is not None, what=log.read_text)
    assert trainer.returncode == LEFT_WORK, log.read_text()
    steps = {(tmp_path / f"rank-{rank}").read_text() for rank in range(3)}
    assert len(steps) == 1, "a rank that saves another step has another model"
    assert int(steps.pop()) > 0


ACTOR = """
import json, sys, time
from pathlib import Path
import ray
ray.init(address="auto", logging_level="ERROR")
@ray.remote(num_cpus=0)
class Actor:
    def ready(self):
        return True
actor = Actor.remote()
ray.get(actor.ready.remote())
folder = Path(sys.argv[1])
(folder / "actor").touch()
while not (folder / "end").exists():
    draining = ray._private.state.state.get_draining_nodes()
    (folder / "new").write_text(json.dumps(list(draining.values())))
    (folder / "new").rename(folder / "draining")
    time.sleep(0.1)
"""


def deadlines(folder: Path) -> list[int]:
    """Of the nodes that Ray drains, in milliseconds since 1970."""
    file = folder / "draining"
    found: list[int] = json.loads(file.read_text()) if file.exists() else []
    return found


@pytest.mark.skipif(not (RAY / "ray").exists(), reason="no build/ray-env: make test-packages")
def test_a_real_ray_node_is_drained_until_its_last_actor_has_ended(
    tmp_path: Path, processes: ExitStack
) -> None:
    log = tmp_path / "ray.log"
    short = Path(f"/tmp/ray-{os.getpid()}")  # a socket's path has 107 bytes
    processes.callback(shutil.rmtree, short, ignore_errors=True)
    own = {
        "PATH": f"{RAY}:{os.environ['PATH']}",
        "RAY_TMPDIR": str(short),
        "RAY_ADDRESS": f"{HEAD}:6379",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_HEAD": HEAD,
        "POD_IP": HEAD,
        "NOTICE_REASON": "smells of smoke",
        "NOTICE_SECONDS": "3600",
    }
    small = ["--num-cpus=1", "--object-store-memory=100000000", "--block"]

    def ray(*words: str) -> str:
        done = subprocess.run(
            ["ray", *words], env=os.environ | own, check=False, capture_output=True, text=True
        )
        return done.stdout

    def nodes() -> dict[str, dict[str, Any]]:
        text = ray(
            "list", "nodes", "--address", f"http://{HEAD}:8265", "--format", "json", "--detail"
        )
        with suppress(ValueError):
            return {one["node_ip"]: one for one in json.loads(text) if one["state"] == "ALIVE"}
        return {}

    head = ["ray", "start", "--head", f"--node-ip-address={HEAD}", "--port=6379"]
    head += [f"--dashboard-host={HEAD}", "--dashboard-port=8265"]
    start(processes, [*head, *small], log, **own)
    wait_until(lambda: set(nodes()) == {HEAD}, what=log.read_text)
    actor = tmp_path / "actor.py"
    actor.write_text(ACTOR)
    start(processes, [str(RAY / "python"), str(actor), str(tmp_path)], log, **own)
    wait_until((tmp_path / "actor").exists, what=log.read_text)
    drain = start(processes, ["sh", str(EXAMPLES / "ray-drain")], log, **own)
    wait_until(lambda: deadlines(tmp_path), what=log.read_text)
    [at] = deadlines(tmp_path)
    assert 3000 < at / 1000 - time.time() <= 3600
    assert drain.poll() is None, "an actor is alive there"
    (tmp_path / "end").touch()
    wait_until(lambda: drain.poll() is not None, what=log.read_text)
    assert drain.returncode == 0, log.read_text()
