"""The GPUs multiply matrices until standard input ends, by the host's PyTorch.

Prints ``ready`` when the first product is there, then the rate of all.
"""

import importlib
import select
import sys
import time

torch = importlib.import_module("torch")  # the host's: it is not installed where types are checked
_SIZE = 8192


def main() -> None:
    devices = range(torch.cuda.device_count())
    matrices = [
        torch.randn(_SIZE, _SIZE, dtype=torch.bfloat16, device=f"cuda:{device}")
        for device in devices
    ]
    products = 0
    for matrix in matrices:
        matrix @ matrix
        torch.cuda.synchronize(matrix.device)
    print("ready", flush=True)
    began = time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(20):
            for matrix in matrices:
                torch.mm(matrix, matrix)
                products += 1
        for matrix in matrices:
            torch.cuda.synchronize(matrix.device)
    seconds = time.monotonic() - began
    rate = 2 * _SIZE**3 * products / seconds / 1e12
    print(f"{rate:.0f} TFLOP/s over {seconds:.0f} s")


if __name__ == "__main__":
    main()
