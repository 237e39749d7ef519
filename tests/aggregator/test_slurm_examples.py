"""The examples for slurm.conf, run by a real slurmd: HealthCheckProgram and Prolog."""

from pathlib import Path

import pytest

from tests.controlplane.waiting import wait_until
from tests.support.slurm import Slurm, needs_slurm

EXAMPLES = Path(__file__).parents[2] / "deploy/examples/slurm"
AGENT = "/opt/sickbay/bin/sickbay-agent"
pytestmark = [needs_slurm, pytest.mark.root]


class Programs:
    """The examples with agents of the test, which print a line and count their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.set_failure("")
        for name in ("sickbay-health", "50-sickbay"):
            agent = folder / f"agent-of-{name}"
            agent.write_text(
                f"#!/bin/sh\necho x >> {folder}/calls-of-{name}\n. {folder}/said\n"
                'echo "$said"; exit "$code"\n'
            )
            text = (EXAMPLES / name).read_text()
            assert AGENT in text
            # slurmd gives its programs no SLURM_CONF, as a site has the file at its place.
            begin, _, rest = text.replace(AGENT, str(agent)).partition("\n")
            conf = f"export SLURM_CONF={folder}/slurm/slurm.conf"
            (folder / name).write_text(f"{begin}\n{conf}\n{rest}")
            for program in (agent, folder / name):
                program.chmod(0o755)

    def set_failure(self, failure: str) -> None:
        code, said = (1, f"sickbay: {failure}") if failure else (0, "sickbay: ok")
        (self.folder / "said.new").write_text(f'code={code}\nsaid="{said}"\n')
        (self.folder / "said.new").replace(self.folder / "said")

    def calls(self, name: str) -> int:
        file = self.folder / f"calls-of-{name}"
        return file.read_text().count("x") if file.exists() else 0


def test_the_health_check_drains_a_failed_node_and_leaves_anothers_words(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    conf = (
        f"HealthCheckProgram={tmp_path}/sickbay-health\nHealthCheckInterval=1\n"
        "HealthCheckNodeState=ANY"
    )
    folder = tmp_path / "slurm"
    folder.mkdir()
    with Slurm(folder, silent=0, more=conf) as slurm:

        def checked_again() -> None:
            before = programs.calls("sickbay-health")
            wait_until(lambda: programs.calls("sickbay-health") > before + 1, what=slurm.log)

        checked_again()
        assert slurm.state("w1") == "IDLE"
        programs.set_failure("xid:79 on GPU 3")
        wait_until(lambda: slurm.state("w1") == "IDLE+DRAIN", what=slurm.log)
        assert slurm.shown("w1")["Reason"] == "sickbay: xid:79 on GPU 3"
        programs.set_failure("")
        slurm.update("w1", "state=undrain")
        slurm.update("w1", "reason=the last one's words")  # which Slurm 24.11 keeps
        programs.set_failure("xid:79 on GPU 3")
        wait_until(lambda: slurm.state("w1") == "IDLE+DRAIN", what=slurm.log)
        assert slurm.shown("w1")["Reason"] == "sickbay: xid:79 on GPU 3"
        slurm.update("w1", "reason=RMA 123, ann")
        programs.set_failure("xid:48 on GPU 3")
        checked_again()
        assert slurm.shown("w1")["Reason"] == "RMA 123, ann"
        slurm.update("w1", "state=down", "reason=no power in rack 7")
        slurm.update("w1", "state=undrain")
        checked_again()
        assert slurm.state("w1") == "DOWN"
        assert slurm.shown("w1")["Reason"] == "no power in rack 7"
        programs.set_failure("")
        checked_again()
        assert slurm.state("w1") == "DOWN"


def test_the_prolog_lets_no_job_begin_on_a_failed_node(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    folder = tmp_path / "slurm"
    folder.mkdir()
    with Slurm(folder, silent=0, more=f"Prolog={tmp_path}/50-sickbay") as slurm:
        slurm.run("scancel", slurm.submit("w1"))
        assert programs.calls("50-sickbay") == 1
        wait_until(lambda: slurm.state("w1") == "IDLE", what=slurm.log)
        programs.set_failure("disk-space /: full")
        words = ["sbatch", "--parsable", "--nodelist=w1", "--output=/dev/null", "--wrap=true"]
        job = slurm.run(*words, f"--chdir={tmp_path}").strip()
        wait_until(lambda: "DRAIN" in slurm.state("w1"), what=slurm.log)
        assert slurm.shown("w1")["Reason"] == "Prolog error"
        shown = ["squeue", "--noheader", "--format=%T", "--jobs", job]
        wait_until(lambda: slurm.run(*shown).strip() == "PENDING", what=slurm.log)
