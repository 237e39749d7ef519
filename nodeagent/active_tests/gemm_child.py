"""The same matrix product on every GPU, and whether the bits are the same: silent data corruption.

Run by the node's own Python with PyTorch, as text: ``python3 -c TEXT SECONDS``. Prints one line of
JSON. Exit code 77: there is no PyTorch, or it sees no GPU.

Source of the method: equal kernels on equal inputs give equal bits, so a GPU that differs computes
wrongly. One process runs all GPUs, so that the same version of cuBLAS chooses the same algorithm.
"""

import hashlib
import json
import sys
import time
from typing import Any

_SIZE = 8192
_MISSING = 77


def product(torch: Any, device: str, seconds: float) -> dict[str, Any]:
    """Multiply for this long; the digest of the result, and whether any repeat had other bits."""
    generator = torch.Generator(device="cpu").manual_seed(20260101)
    left, right = (
        torch.randn(_SIZE, _SIZE, generator=generator).to(device=device, dtype=torch.bfloat16)
        for _ in range(2)
    )
    first = torch.matmul(left, right)
    torch.cuda.synchronize(device)
    began, count, differ = time.monotonic(), 0, False
    while time.monotonic() - began < seconds and not differ:
        again = torch.matmul(left, right)
        differ = not torch.equal(first, again)  # waits for the product
        count += 1
    took = time.monotonic() - began
    data = first.view(torch.int16).cpu().numpy().tobytes()
    return {
        "digest": hashlib.sha256(data).hexdigest(),
        "repeats_differ": differ,
        "tflops": round(2 * _SIZE**3 * count / took / 1e12, 1) if took else 0.0,
    }


def main(seconds: float) -> int:
    """Run all GPUs, one after the other in slices of the time; the exit code."""
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        print(f"PyTorch cannot be imported: {error}", file=sys.stderr)  # noqa: T201
        return _MISSING
    count = torch.cuda.device_count()
    if not count:
        print("PyTorch sees no GPU", file=sys.stderr)  # noqa: T201
        return _MISSING
    names = [torch.cuda.get_device_properties(index) for index in range(count)]
    rows = [
        {
            "gpu": str(getattr(names[index], "uuid", index)),
            "model": names[index].name,
            **product(torch, f"cuda:{index}", seconds / count),
        }
        for index in range(count)
    ]
    print(json.dumps({"gpus": rows}))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
