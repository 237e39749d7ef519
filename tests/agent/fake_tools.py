"""Programs that answer as nvidia-smi and dcgmi do (shared facts of repair and of active tests).

Each is a shell script in a folder of the test. What it says is in files beside it, so that a test
changes it while an agent runs. ``calls`` has a line for each call, written before all else.
"""

from collections.abc import Sequence
from pathlib import Path

from tests.nvml import FakeGpu, pci_of

_SMI = """#!/bin/sh
here={here}
echo "nvidia-smi $*" >> $here/calls
case "$*" in
  *--query-gpu=*)
    [ -e $here/query.hang ] && sleep 600
    cat $here/query.out; exit $(cat $here/query.code) ;;
  *--gpu-reset*)
    echo "$*" >> $here/resets
    [ -e $here/reset.hook ] && . $here/reset.hook
    cat $here/reset.out; exit $(cat $here/reset.code) ;;
  *-pm*) exit 0 ;;
esac
exit 2
"""

_TOOL = """#!/bin/sh
here={here}
echo "{name} $*" >> $here/calls
[ -e $here/{name}.hook ] && . $here/{name}.hook
cat $here/{name}.out
exit $(cat $here/{name}.code)
"""


class FakeTools:
    """Programs in ``folder``; ``path`` is what the configuration names."""

    def __init__(self, folder: Path, gpus: Sequence[FakeGpu]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.smi = folder / "nvidia-smi"
        self._write(self.smi, _SMI.format(here=folder))
        self.rows(gpus)
        self.set_answer("query", code=0)
        self.set_answer("reset", "All done.\n", code=0)
        self.tool("reboot-now")

    def rows(self, gpus: Sequence[FakeGpu], persistence: str = "Disabled") -> None:
        lines = [
            f"{index}, {gpu.uuid}, 16500{index}, 0000{pci_of(index)}.0, {gpu.name}, 96.00.74, "
            f"550.54.15, {persistence}"
            for index, gpu in enumerate(gpus)
        ]
        (self.folder / "query.out").write_text("".join(f"{line}\n" for line in lines))

    def tool(self, name: str, out: str = "", code: int = 0) -> Path:
        """A program called ``name`` that says ``out``."""
        path = self.folder / name
        self._write(path, _TOOL.format(here=self.folder, name=name))
        self.set_answer(name, out, code=code)
        return path

    def set_answer(self, name: str, out: str | None = None, *, code: int) -> None:
        if out is not None:
            (self.folder / f"{name}.out").write_text(out)
        elif not (self.folder / f"{name}.out").exists():
            (self.folder / f"{name}.out").touch()
        (self.folder / f"{name}.code").write_text(f"{code}\n")

    def hook(self, name: str, script: str) -> None:
        """Shell lines that the program runs first."""
        (self.folder / f"{name}.hook").write_text(script)

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def count(self, word: str) -> int:
        return sum(word in call for call in self.calls)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)
