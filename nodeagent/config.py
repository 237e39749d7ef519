"""The agent's settings, as the rest of the agent sees them: read once, checked, frozen.

Durations are seconds, sizes bytes, percentages 0 to 100. docs/agent.md is the reference for people.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkConfig:
    """``[aggregator]``: where evidence goes. An empty address keeps it on the node.

    ``insecure_plaintext`` is needed for plaintext to anything but loopback or a unix socket;
    plaintext is what is spoken without ``ca_file``.
    """

    address: str = ""
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    token_file: Path | None = None
    server_name: str = ""
    insecure_plaintext: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLogConfig:
    """``[kernel_log]``: ``boot_grace`` is how young (seconds) a boot is whose old lines are new."""

    path: Path = Path("/dev/kmsg")
    enabled: bool = True
    boot_grace: float = 1200.0
    insecure_accept_user_records: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlConfig:
    """``[nvml]``: ``library`` empty is the loader's own ``libnvidia-ml.so.1``."""

    library: str = ""
    enabled: bool = True
    deadline: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """``[checks.NAME]``, defaults filled in: every option of the check's spec is in ``options``."""

    on: bool
    interval: float
    deadline: float
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that the agent was told. ``checks`` has an entry for every registered check.

    ``proc`` and ``sys`` None are this process's own; ``expected_gpus`` None expects nothing.
    """

    node: str
    host_root: Path = Path("/")
    proc: Path | None = None
    sys: Path | None = None
    run_dir: Path = Path("/run/sickbay")
    state_dir: Path = Path("/var/lib/sickbay")
    socket: Path = Path("/run/sickbay/agent.sock")
    metrics_listen: str = ""
    log_level: str = "info"
    expected_gpus: int | None = None
    uplink: UplinkConfig = field(default_factory=UplinkConfig)
    kernel_log: KernelLogConfig = field(default_factory=KernelLogConfig)
    nvml: NvmlConfig = field(default_factory=NvmlConfig)
    checks: Mapping[str, CheckSettings] = field(default_factory=dict)
