"""The agent's settings, as the rest of the agent sees them: read once, checked, frozen.

Durations are seconds, sizes bytes, percentages 0 to 100. docs/agent.md is the reference for people.
``load`` refuses a file with every problem that it has, each with file, line, key and what was
expected (``ConfigError``), before anything starts.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nodeagent.configfile import units, values
from nodeagent.configfile.toml_table import ConfigError, Document, Problem, Table, read_document
from nodeagent.dataclass import dataclass

if TYPE_CHECKING:
    from nodeagent.checks.base import CheckSpec

__all__ = [
    "CheckSettings",
    "Config",
    "ConfigError",
    "KernelLogConfig",
    "NvmlConfig",
    "ReadyConfig",
    "RepairConfig",
    "UplinkConfig",
    "load",
]


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkConfig:
    """``[aggregator]``: where evidence goes. An empty address keeps it on the node.

    ``insecure_plaintext`` is needed for plaintext, except to loopback or a unix socket; without
    ``ca_file`` the agent speaks plaintext.
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
class RepairConfig:
    """``[repair]``: the orders that this node obeys; none without ``allow``.

    ``driver_root`` and all programs are paths on the host, whatever this process's own root is.
    """

    allow: tuple[str, ...] = ()
    window: float = 86400.0
    max_gpu_resets: int = 4
    max_reboots: int = 2
    max_tests: int = 48
    driver_root: Path = Path("/")
    nvidia_smi: Path = Path("/usr/bin/nvidia-smi")
    persistence_socket: Path = Path("/run/nvidia-persistenced/socket")
    gpu_daemons: tuple[str, ...] = ("nvidia-persistenced", "nv-fabricmanager")
    reset_limit: float = 600.0
    reboot_command: tuple[str, ...] = ("/bin/systemctl", "reboot")
    reboot_limit: float = 1200.0
    tool_path: tuple[str, ...] = (
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
    )
    profiles: Path | None = None
    insecure_own_pid_namespace: bool = False
    insecure_loopback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyConfig:
    """``[ready]``: ``launcher_socket`` None serves no launcher."""

    launcher_socket: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """``[checks.NAME]``, defaults filled in: every option of the check's spec is in ``options``."""

    on: bool
    interval: float
    deadline: float
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All of the agent's settings. ``checks`` has an entry for every check, own ones too.

    ``own`` are the checks of the site's own, which the registry does not have. ``proc`` and ``sys``
    None are this process's own; ``expected_gpus`` None expects no number.
    """

    node: str
    host_root: Path = Path("/")
    proc: Path | None = None
    sys: Path | None = None
    run_dir: Path = Path("/run/sickbay")
    state_dir: Path = Path("/var/lib/sickbay")
    socket: Path = Path("/run/sickbay/agent.sock")
    metrics_listen: str = ""
    metrics_token_file: Path | None = None
    log_level: str = "info"
    expected_gpus: int | None = None
    uplink: UplinkConfig = field(default_factory=UplinkConfig)
    kernel_log: KernelLogConfig = field(default_factory=KernelLogConfig)
    nvml: NvmlConfig = field(default_factory=NvmlConfig)
    repair: RepairConfig = field(default_factory=RepairConfig)
    ready: ReadyConfig = field(default_factory=ReadyConfig)
    checks: Mapping[str, CheckSettings] = field(default_factory=dict)
    own: "tuple[CheckSpec, ...]" = ()


#: The verbs of an order, as the configuration names them.
VERBS = ("gpu-reset", "reboot", "test")
LOG_LEVELS = ("debug", "info", "warning", "error")
ADDRESS = '"host:port" or "unix:/path"'
LISTEN = '"host:port"'


def load(path: Path, environ: Mapping[str, str], *, with_checks: bool = True) -> Config:
    """The configuration in ``path``. Raises ConfigError with all of its errors.

    ``environ`` gives NODE_NAME, AGGREGATOR_ADDRESS, METRICS_LISTEN and METRICS_TOKEN_FILE.
    Without ``with_checks``, ``[checks]``, ``[own]`` and kernel lines are left unread: a client
    command of the running agent then imports no check.
    """
    return _read(read_document(path), environ, with_checks=with_checks)


def default(environ: Mapping[str, str], *, with_checks: bool = True) -> Config:
    """The configuration of a machine without a file. Raises ConfigError (a bad NODE_NAME)."""
    return _read(_nothing(), environ, with_checks=with_checks)


def keys() -> list[str]:
    """Every key that a file may have, dotted, tables included: the docs must describe each."""
    document = _nothing()
    _read(document, {"NODE_NAME": "n"}, with_checks=True)
    return document.known()


def _nothing() -> Document:
    return Document("(no configuration file)", {}, "")


def _read(document: Document, environ: Mapping[str, str], *, with_checks: bool) -> Config:
    top = document.top
    run_dir = top.read("run_dir", Path("/run/sickbay"), values.possible_directory, values.DIRECTORY)
    own, own_settings = _own(top, read=with_checks)
    repair = top.table("repair")
    config = Config(
        node=_node(document, environ),
        host_root=top.read("host_root", Path("/"), values.filled_directory, values.DIRECTORY),
        proc=_optional_directory(top, "proc"),
        sys=_optional_directory(top, "sys"),
        run_dir=run_dir,
        state_dir=top.read(
            "state_dir", Path("/var/lib/sickbay"), values.possible_directory, values.DIRECTORY
        ),
        socket=_socket(top, run_dir),
        metrics_listen=_or_else(
            top, "metrics_listen", environ.get("METRICS_LISTEN", ""), values.listen, LISTEN
        )
        or "",
        metrics_token_file=_or_else(
            top,
            "metrics_token_file",
            environ.get("METRICS_TOKEN_FILE", ""),
            values.readable_file,
            values.FILE,
        ),
        log_level=top.read(
            "log_level", "info", values.one_of(LOG_LEVELS), f"one of {', '.join(LOG_LEVELS)}"
        ),
        expected_gpus=_expected_gpus(top.table("expect")),
        uplink=_uplink(top.table("aggregator"), environ),
        kernel_log=_kernel_log(top.table("kernel_log")),
        nvml=_nvml(top.table("nvml")),
        repair=_repair(repair),
        ready=_ready(top.table("ready")),
        checks={**_checks(top.table("checks"), read=with_checks), **own_settings},
        own=own,
    )
    _refuse_repairs_in_plaintext(repair, config)
    document.finish()
    return config


def _refuse_repairs_in_plaintext(table: Table, config: Config) -> None:
    """Without TLS whoever is on the way to the aggregator, or binds its port here, gives orders."""
    uplink, repair = config.uplink, config.repair
    safe = bool(uplink.ca_file) or uplink.address.startswith("unix:")
    if not safe and repair.insecure_loopback and not uplink.insecure_plaintext:
        safe = True  # another address needs TLS, or insecure_plaintext
    if repair.allow and uplink.address and not safe:
        table.problem(
            "allow",
            f'allows orders, and those of "{uplink.address}" come in plaintext',
            "aggregator.ca_file (TLS), or a unix socket, or no allow",
        )


def _node(document: Document, environ: Mapping[str, str]) -> str:
    """The file's name, else NODE_NAME (the pod's downward API), else the hostname."""
    name = document.top.read("node", "", values.node_name, values.NODE_NAME)
    if "node" in document.top:
        return name
    found, origin = environ.get("NODE_NAME", ""), "$NODE_NAME"
    if not found:
        found, origin = os.uname().nodename, "this machine's hostname"
    try:
        return values.node_name(found)
    except ValueError as error:
        document.add(Problem(document.file, 0, "node", f"{origin} {error}", values.NODE_NAME))
        return found


def _or_else(
    top: Table, key: str, found: str, check: Callable[[Any], T], expected: str
) -> T | None:
    """The file's value, else that of the variable KEY, by which a manifest turns a port on."""
    written = top.read(key, None, check, expected)
    if key in top or not found:
        return written
    try:
        return check(found)
    except (ValueError, OSError) as error:
        top.problem(key, f"${key.upper()} {error}", expected)
        return None


def _optional_directory(top: Table, name: str) -> Path | None:
    return top.read(name, None, values.existing_directory, values.DIRECTORY)


def _socket(top: Table, run_dir: Path) -> Path:
    expected = "an absolute path of at most 107 bytes"
    path = top.read("socket", None, values.socket, expected)
    if path is None and "socket" not in top:
        path = run_dir / "agent.sock"
        try:
            values.socket(str(path))
        except ValueError as error:
            top.problem("run_dir", f"with /agent.sock {error}", "a shorter path, or set socket")
    return path or run_dir / "agent.sock"


def _expected_gpus(table: Table) -> int | None:
    return table.read("gpus", None, values.integer(0, 256), "a whole number from 0 to 256")


def _uplink(table: Table, environ: Mapping[str, str]) -> UplinkConfig:
    def file(name: str) -> Path | None:
        return table.read(name, None, values.readable_file, values.FILE)

    uplink = UplinkConfig(
        address=_address(table, environ),
        ca_file=file("ca_file"),
        cert_file=file("cert_file"),
        key_file=file("key_file"),
        token_file=file("token_file"),
        server_name=table.read("server_name", "", values.text, "a text"),
        insecure_plaintext=table.read("insecure_plaintext", False, values.flag, "true or false"),
    )
    _refuse_contradictions(table, uplink)
    return uplink


def _address(table: Table, environ: Mapping[str, str]) -> str:
    """The file's address, else AGGREGATOR_ADDRESS, by which a manifest names its own namespace."""
    written = table.read("address", "", values.target, ADDRESS)
    found = environ.get("AGGREGATOR_ADDRESS", "")
    if "address" in table or not found:
        return written
    try:
        return values.target(found)
    except ValueError as error:
        table.problem("address", f"$AGGREGATOR_ADDRESS {error}", ADDRESS)
        return ""


def _refuse_contradictions(table: Table, uplink: UplinkConfig) -> None:
    if ("cert_file" in table) != ("key_file" in table):
        there, missing = ("cert_file", "key_file")[:: 1 if "cert_file" in table else -1]
        table.problem(there, f"given without {missing}", "both or none")
    tls = "ca_file" in table
    for name in ("cert_file", "server_name"):
        if name in table and not tls:
            table.problem(name, "means TLS, and ca_file is not set", "aggregator.ca_file too")
    if tls and uplink.insecure_plaintext:
        table.problem("insecure_plaintext", "is true and ca_file is set", "one of the two")
    if (
        uplink.address
        and not tls
        and not uplink.insecure_plaintext
        and not _is_local(uplink.address)
    ):
        table.problem(
            "address",
            f'"{uplink.address}" is not on this machine, and without ca_file it is plaintext',
            "aggregator.ca_file (TLS), or aggregator.insecure_plaintext = true",
        )


def _is_local(address: str) -> bool:
    return address.startswith("unix:") or units.is_loopback(units.host_port(address)[0])


def _kernel_log(table: Table) -> KernelLogConfig:
    standard = KernelLogConfig()
    return KernelLogConfig(
        # The default may be missing (a pod without privileges): the agent then reports it and runs.
        # A path that a person wrote down is meant to be there.
        path=table.read(
            "path", standard.path, values.existing_path, "the absolute path of the kernel log"
        ),
        enabled=table.read("enabled", standard.enabled, values.flag, "true or false"),
        boot_grace=table.read(
            "boot_grace", standard.boot_grace, values.duration(), values.DURATION
        ),
        insecure_accept_user_records=table.read(
            "insecure_accept_user_records",
            standard.insecure_accept_user_records,
            values.flag,
            "true or false",
        ),
    )


def _nvml(table: Table) -> NvmlConfig:
    standard = NvmlConfig()
    return NvmlConfig(
        # The library is not looked for here: a driver container brings it many minutes after a
        # boot.
        library=table.read("library", standard.library, values.text, "a library's name or path"),
        enabled=table.read("enabled", standard.enabled, values.flag, "true or false"),
        deadline=table.read("deadline", standard.deadline, values.duration(0.1), values.DURATION),
    )


def _repair(table: Table) -> RepairConfig:
    usual = RepairConfig()
    path = "an absolute path on the host"
    count = "a whole number from 0 to 1000"
    return RepairConfig(
        allow=table.read("allow", usual.allow, _verbs, f"a list of {', '.join(VERBS)}"),
        window=table.read("window", usual.window, values.duration(60.0), values.DURATION),
        max_gpu_resets=table.read(
            "max_gpu_resets", usual.max_gpu_resets, values.integer(0, 1000), count
        ),
        max_reboots=table.read("max_reboots", usual.max_reboots, values.integer(0, 1000), count),
        max_tests=table.read("max_tests", usual.max_tests, values.integer(0, 1000), count),
        # Not looked for here: a driver container brings its root many minutes after a boot.
        driver_root=table.read("driver_root", usual.driver_root, values.absolute, path),
        nvidia_smi=table.read("nvidia_smi", usual.nvidia_smi, values.absolute, path),
        persistence_socket=table.read(
            "persistence_socket", usual.persistence_socket, values.absolute, path
        ),
        gpu_daemons=table.read(
            "gpu_daemons", usual.gpu_daemons, values.texts, "a list of names of processes"
        ),
        reset_limit=table.read(
            "reset_limit", usual.reset_limit, values.duration(1.0), values.DURATION
        ),
        reboot_command=table.read(
            "reboot_command",
            usual.reboot_command,
            _command,
            'a program and its arguments, such as ["/bin/systemctl", "reboot"]',
        ),
        reboot_limit=table.read(
            "reboot_limit", usual.reboot_limit, values.duration(1.0), values.DURATION
        ),
        tool_path=table.read("tool_path", usual.tool_path, _folders, "a list of absolute paths"),
        profiles=table.read("profiles", None, values.existing_directory, values.DIRECTORY),
        insecure_loopback=table.read(
            "insecure_loopback", usual.insecure_loopback, values.flag, "true or false"
        ),
        insecure_own_pid_namespace=table.read(
            "insecure_own_pid_namespace",
            usual.insecure_own_pid_namespace,
            values.flag,
            "true or false",
        ),
    )


def _ready(table: Table) -> ReadyConfig:
    expected = "an absolute path of at most 107 bytes"
    return ReadyConfig(launcher_socket=table.read("launcher_socket", None, values.socket, expected))


def _verbs(value: Any) -> tuple[str, ...]:
    verb = values.one_of(VERBS)
    if not isinstance(value, list):
        return values.texts(value)
    return tuple(dict.fromkeys(verb(each) for each in value))


def _command(value: Any) -> tuple[str, ...]:
    command = values.texts(value)
    if not command:
        raise ValueError("is empty")
    values.absolute(command[0])
    return command


def _folders(value: Any) -> tuple[str, ...]:
    return tuple(str(values.absolute(each)) for each in values.texts(value))


def _checks(table: Table, *, read: bool) -> Mapping[str, CheckSettings]:
    if not read:
        table.skip()
        return {}
    from nodeagent.config.checks import read_checks  # every check comes with it

    return read_checks(table)


def _own(top: Table, *, read: bool) -> "tuple[tuple[CheckSpec, ...], Mapping[str, CheckSettings]]":
    """The site's own checks: programs and plugins, kernel lines, node-problem-detector's rules."""
    specs: tuple[CheckSpec, ...] = ()
    settings: dict[str, CheckSettings] = {}
    table, lines, monitor = top.table("own"), top.table("kernel_lines"), "kernel_monitor"
    if read and table.names():
        from nodeagent.config.custom_checks import read_own  # it imports third-party code

        specs, settings = read_own(table)
    else:
        table.skip()
    if read and (lines.names() or monitor in top):
        from nodeagent.config.kernel_lines import read_lines, read_monitor

        for more, its_settings in (
            read_lines(lines, settings),
            read_monitor(top, monitor, settings),
        ):
            specs, settings = specs + more, {**settings, **its_settings}
    else:
        lines.skip()
        top.read(monitor, None, _unread, "")
    return specs, settings


def _unread(value: Any) -> Any:
    return value
