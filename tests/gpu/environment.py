"""The environment in which the agent runs as in its image."""

import os
import subprocess
import sysconfig
import tempfile

from tests.gpu.real_agent import ROOT


def optimized(python: str, *sites: str) -> dict[str, str]:
    """Variables for programs without docstrings and assertions, from bytecode compiled for that.

    ``sites`` are folders of packages. GPU_BYTECODE is the bytecode's folder, for several runs.
    """
    cache = os.environ.get("GPU_BYTECODE") or tempfile.mkdtemp(prefix="sickbay-gpu-pycache-")
    variables = os.environ | {"PYTHONOPTIMIZE": "2", "PYTHONPYCACHEPREFIX": cache}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    folders = [sysconfig.get_path("stdlib"), str(ROOT / "nodeagent"), str(ROOT / "proto")]
    folders += filter(None, sites)
    subprocess.run(
        [python, "-m", "compileall", "-q", "-j", "0", "-o", "2", "-x", "/test/", *folders],
        check=False,  # some of the library's own data is no Python
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return variables
