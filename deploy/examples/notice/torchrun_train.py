"""A loop under torchrun that leaves at a notice of drain.notice; replace `train` and `save`."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from on_eviction_notice import PODINFO, read_notice

#: Seconds between two reads of the notice: an all-reduce at each step of milliseconds costs time.
EVERY = float(os.environ.get("NOTICE_EVERY", "10"))
LEFT = Path(os.environ.get("LEFT_FILE", "/tmp/left"))  # noqa: S108 - of the pod alone
FILE = os.environ.get("PODINFO_FILE", PODINFO)


def train(step: int) -> None:
    """One step: forward, backward, optimizer."""
    del step
    time.sleep(0.05)


def save(step: int) -> None:
    """The checkpoint of all ranks, with the step to go on with."""
    folder = Path(os.environ.get("CHECKPOINTS", "/checkpoints"))
    (folder / f"rank-{dist.get_rank()}").write_text(str(step))


def main() -> None:
    dist.init_process_group(os.environ.get("BACKEND", "nccl"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    read_at = time.monotonic()
    for step in range(1_000_000):
        train(step)
        due = dist.get_rank() == 0 and time.monotonic() - read_at >= EVERY
        # One rank decides when all compare: a clock of each would let one wait for the others.
        state = torch.tensor([int(due)], device=device)
        dist.broadcast(state, src=0)
        if not state.item():
            continue
        read_at = time.monotonic()
        leave = torch.tensor([int(read_notice(FILE) is not None)], device=device)
        dist.all_reduce(leave, op=dist.ReduceOp.MAX)  # the notice may be on another node's pod
        if leave.item():
            save(step + 1)
            dist.barrier()
            LEFT.touch()
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
