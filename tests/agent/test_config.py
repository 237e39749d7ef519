"""Every way in which a configuration file can be wrong, and the error about it."""

import os
import re
import socket
from pathlib import Path

import pytest

from nodeagent.checks import registry
from nodeagent.config.settings import Config, ConfigError, default, load
from tests.support.pipes import pipe_with
from tests.support.text_files import text_file

ENVIRON = {"NODE_NAME": "n1"}
REPOSITORY = Path(__file__).parents[2]


def problems(path: Path, text: str | bytes, environ: dict[str, str] | None = None) -> list[str]:
    raw = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        load(path, ENVIRON if environ is None else environ)
    return [str(problem) for problem in caught.value.problems]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "agent.toml"


def loaded(file: Path, text: str, environ: dict[str, str] | None = None) -> Config:
    file.write_text(text)
    return load(file, ENVIRON if environ is None else environ)


# (the file's text, the line it names, the key it names, words of the complaint, words of the
# expected value)
BAD = [
    ('nod = "x"', 1, "nod", "unknown key (did you mean node?)", "one of"),
    ("interval = 30", 1, "interval", "unknown key", "one of"),
    ("\n\ngpus = 8", 3, "gpus", "did you mean expect.gpus?", "one of"),
    ("[agregator]", 1, "agregator", "did you mean aggregator?", "one of"),
    ("[expect]\ngpu = 8", 2, "expect.gpu", "did you mean expect.gpus?", "gpus"),
    ('"no de" = 1', 1, '"no de"', "unknown key", "one of"),
    ('node = ""', 1, "node", "is empty", "letters"),
    ('node = "a b"', 1, "node", "'a b' is no node's name", "letters"),
    ("node = 7", 1, "node", "is the number 7", "letters"),
    (f'node = "{"a" * 254}"', 1, "node", "no node's name", "at most 253"),
    ("node = 2026-11-21", 1, "node", "is the date or time 2026-11-21", "letters"),
    ('host_root = "/nope"', 1, "host_root", "/nope is not there", "directory"),
    ('host_root = "host"', 1, "host_root", '"host" is not absolute', "absolute"),
    ('proc = "/etc/passwd"', 1, "proc", "is not a directory", "directory"),
    ("sys = true", 1, "sys", "is true", "directory"),
    ('run_dir = "/etc/passwd"', 1, "run_dir", "is not a directory", "directory"),
    ('state_dir = ""', 1, "state_dir", "is empty", "directory"),
    ('socket = "agent.sock"', 1, "socket", "not absolute", "absolute path of at most 107"),
    (f'socket = "/{"s" * 107}"', 1, "socket", "is 108 bytes long", "at most 107"),
    (f'run_dir = "/{"s" * 100}"', 1, "run_dir", "is 112 bytes long", "set socket"),
    ('metrics_listen = "9100"', 1, "metrics_listen", "has no port", '"host:port"'),
    ('metrics_listen = "a:99999"', 1, "metrics_listen", '"99999" is no port', '"host:port"'),
    ('metrics_listen = "::1:80"', 1, "metrics_listen", "more than one colon", '"host:port"'),
    ('log_level = "loud"', 1, "log_level", 'is "loud"', "debug, info, warning, error"),
    ("expect = 8", 1, "expect", "is the number 8", "a table [expect]"),
    ('[expect]\ngpus = "8"', 2, "expect.gpus", 'is the text "8"', "whole number from 0 to 256"),
    ("[expect]\ngpus = -1", 2, "expect.gpus", "-1 is less than 0", "whole number"),
    ("[expect]\ngpus = 1000", 2, "expect.gpus", "1000 is more than 256", "whole number"),
    ("[expect]\ngpus = true", 2, "expect.gpus", "is true", "whole number"),
    ("[expect]\ngpus = 8.0", 2, "expect.gpus", "is the number 8.0", "whole number"),
    ('[aggregator]\naddress = "agg"', 2, "aggregator.address", "has no port", "host:port"),
    ('[aggregator]\naddress = ":1"', 2, "aggregator.address", "has no host", "host:port"),
    ('[aggregator]\naddress = "https://a:1"', 2, "aggregator.address", "is a URL", "host:port"),
    ('[aggregator]\naddress = "unix:x"', 2, "aggregator.address", "no absolute", "unix:/path"),
    (
        '[aggregator]\naddress = "10.0.0.1:7443"',
        2,
        "aggregator.address",
        "not on this machine, and without ca_file it is plaintext",
        "aggregator.ca_file (TLS), or aggregator.insecure_plaintext = true",
    ),
    ('[aggregator]\naddress = "localhost.evil:1"', 2, "aggregator.address", "plaintext", "TLS"),
    ('[aggregator]\nca_file = "/nope"', 2, "aggregator.ca_file", "/nope is not there", "file"),
    ('[aggregator]\ntoken_file = "/nope"', 2, "aggregator.token_file", "is not there", "file"),
    ('[aggregator]\ntoken_file = "/etc"', 2, "aggregator.token_file", "is a directory", "file"),
    (f'state_dir = "/{"a" * 300}"', 1, "state_dir", "File name too long", "a directory"),
    (
        f'[aggregator]\ntoken_file = "/{"a" * 300}"',
        2,
        "aggregator.token_file",
        "File name too long",
        "file",
    ),
    ('[aggregator]\ntoken_file = "t"', 2, "aggregator.token_file", "not absolute", "absolute"),
    (
        '[aggregator]\nca_file = "/etc/passwd"\ncert_file = "/etc/passwd"',
        3,
        "aggregator.cert_file",
        "given without key_file",
        "both or none",
    ),
    (
        '[aggregator]\nkey_file = "/etc/passwd"\nca_file = "/etc/passwd"',
        2,
        "aggregator.key_file",
        "given without cert_file",
        "both or none",
    ),
    ('[aggregator]\nserver_name = "a"', 2, "aggregator.server_name", "means TLS", "ca_file"),
    (
        '[aggregator]\nca_file = "/etc/passwd"\ninsecure_plaintext = true',
        3,
        "aggregator.insecure_plaintext",
        "ca_file is set",
        "one of the two",
    ),
    (
        '[aggregator]\ninsecure_plaintext = "yes"',
        2,
        "aggregator.insecure_plaintext",
        "text",
        "true",
    ),
    ("[kernel_log]\nboot_grace = 20", 2, "kernel_log.boot_grace", "without a unit", '"30s"'),
    ('[kernel_log]\nboot_grace = "20"', 2, "kernel_log.boot_grace", "has no unit", '"30s"'),
    ('[kernel_log]\nboot_grace = "20 M"', 2, "kernel_log.boot_grace", 'did you mean "m"?', "s"),
    ('[kernel_log]\nboot_grace = "soon"', 2, "kernel_log.boot_grace", "is no duration", '"30s"'),
    ('[kernel_log]\nboot_grace = "-5m"', 2, "kernel_log.boot_grace", "is no duration", '"30s"'),
    ('[kernel_log]\npath = "/nope"', 2, "kernel_log.path", "/nope is not there", "kernel log"),
    ("[kernel_log]\nenabled = 1", 2, "kernel_log.enabled", "is the number 1", "true or false"),
    ('[nvml]\nlibrary = ["x"]', 2, "nvml.library", "is a list", "library"),
    ('[nvml]\nlibrary = "a\\u0000b"', 2, "nvml.library", "zero byte", "library"),
    ('[nvml]\ndeadline = "1ms"', 2, "nvml.deadline", "is less than 0.1 s", "duration"),
    ("checks = []", 1, "checks", "is a list", "a table [checks]"),
    ("[checks]\nxid = false", 2, "checks.xid", "is false", "a table [checks.xid]"),
    ("[checks.xidd]", 1, "checks.xidd", "did you mean checks.xid?", "xid"),
    ('[checks.xid]\non = "yes"', 2, "checks.xid.on", "is the text", "true or false"),
    ('[checks.xid]\ninterval = "9s"', 2, "checks.xid.interval", "as the kernel log comes", "no"),
    ('[checks.reach]\ninterval = "1ms"', 2, "checks.reach.interval", "less than 0.1 s", '"30s"'),
    ('[checks.reach]\ninterval = "9999d"', 2, "checks.reach.interval", "more than ten", "dur"),
    ("[checks.reach]\ndeadline = 5", 2, "checks.reach.deadline", "without a unit", "duration"),
    ('[checks.reach]\nintervall = "9s"', 2, "checks.reach.intervall", "checks.reach.interval", ""),
]


@pytest.mark.parametrize(("text", "line", "key", "what", "expected"), BAD)
def test_a_mistake_is_told_with_file_line_key_and_what_was_expected(
    file: Path, text: str, line: int, key: str, what: str, expected: str
) -> None:
    [problem] = problems(file, text)
    assert problem.startswith(f"{file}:{line}: {key}: ")
    complaint, _, wanted = problem.removeprefix(f"{file}:{line}: {key}: ").partition("; expected ")
    assert what in complaint
    assert expected in wanted


def test_a_host_root_that_holds_no_file_is_a_missing_mount(file: Path) -> None:
    (file.parent / "host").mkdir()
    [problem] = problems(file, f'host_root = "{file.parent}/host"')
    assert "host_root: " in problem
    assert "/host is empty; is the host mounted there?" in problem


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(file: Path) -> None:
    text = 'log_level = "loud"\n[expect]\ngpus = "8"\n[kernel_log]\nbot_grace = "1m"\n'
    found = problems(file, text)
    assert [int(problem.split(":")[1]) for problem in found] == [1, 3, 5]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (b'node = "a"\nnode = "b"\n', 2, "not valid TOML: Cannot overwrite"),
        (b"node = a\n", 1, "not valid TOML: Invalid value"),
        (b"a = 1\n[x\n", 2, "not valid TOML"),
        (b'a = "', 1, "not valid TOML: Unterminated string"),
        (b'a = 1\n\nb = "\xff"\n', 3, "byte 0xff is not UTF-8"),
        (b"\xff\xfea\x00", 1, "byte 0xff is not UTF-8"),
    ],
)
def test_a_file_that_is_no_toml_is_told_with_its_line(
    file: Path, text: bytes, line: int, what: str
) -> None:
    [problem] = problems(file, text)
    assert problem.startswith(f"{file}:{line}: {what}")
    assert "; expected " in problem


def test_a_file_nested_without_end_is_refused_and_is_no_defect_of_ours(file: Path) -> None:
    [problem] = problems(file, "a = " + "[" * 5000)
    assert problem == f"{file}: is nested too deeply to be read; expected tables of settings"


def test_a_missing_file_a_directory_and_an_unreadable_one_are_told(tmp_path: Path) -> None:
    def only(path: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            load(path, ENVIRON)
        return str(caught.value)

    assert only(tmp_path / "no.toml") == (
        f"{tmp_path}/no.toml: there is no such file; expected a TOML file"
    )
    assert "can't be read: it is a directory and no regular file; expected a re" in only(tmp_path)
    below_a_file = tmp_path / "file" / "x.toml"
    (tmp_path / "file").write_text("")
    assert "can't be read: Not a directory" in only(below_a_file)


def test_what_is_no_file_is_refused_before_anybody_waits_for_it_or_reads_it(
    tmp_path: Path, file: Path
) -> None:
    with pipe_with(tmp_path / "pipe", 'node = "a"\n') as pipe:
        with pytest.raises(ConfigError, match="can't be read: it is a pipe and no regular file"):
            load(pipe, ENVIRON)
        [problem] = problems(file, f'[aggregator]\ntoken_file = "{pipe}"')
        assert f"aggregator.token_file: {pipe} is a pipe; expected the absolute path of" in problem
    [problem] = problems(file, '[aggregator]\nca_file = "/dev/zero"')
    assert "aggregator.ca_file: /dev/zero is a device; expected the absolute path of" in problem
    os.truncate(file, 1 << 40)
    with pytest.raises(ConfigError, match="can't be read: it has more than 1 MiB"):
        load(file, ENVIRON)


def test_a_file_without_an_address_takes_the_one_of_the_environment(file: Path) -> None:
    environ = {"NODE_NAME": "n1", "AGGREGATOR_ADDRESS": "aggregator.gpu-health.svc:8443"}
    tls = f'[aggregator]\nca_file = "{REPOSITORY / "README.md"}"\n'
    assert loaded(file, tls, environ).uplink.address == "aggregator.gpu-health.svc:8443"
    own = tls + 'address = "other.example.test:1"\n'
    assert loaded(file, own, environ).uplink.address == "other.example.test:1"
    assert not loaded(file, tls + 'address = ""\n', environ).uplink.address, "turned off"
    [problem] = problems(file, tls, environ | {"AGGREGATOR_ADDRESS": "https://a"})
    assert "aggregator.address: $AGGREGATOR_ADDRESS" in problem
    assert '"host:port"' in problem


def test_the_port_for_metrics_may_come_from_the_environment(file: Path) -> None:
    token = str(REPOSITORY / "README.md")
    environ = {"NODE_NAME": "n1", "METRICS_LISTEN": "0.0.0.0:9810", "METRICS_TOKEN_FILE": token}
    config = loaded(file, "", environ)
    assert (config.metrics_listen, config.metrics_token_file) == ("0.0.0.0:9810", Path(token))
    assert loaded(file, 'metrics_listen = ""', environ).metrics_listen == "", "turned off"
    wrong = environ | {"METRICS_LISTEN": "9810", "METRICS_TOKEN_FILE": "/nowhere"}
    first, second = problems(file, "", wrong)
    assert "metrics_listen: $METRICS_LISTEN" in first
    assert "metrics_token_file: $METRICS_TOKEN_FILE /nowhere is not there" in second
    [unreadable] = problems(file, "", environ | {"METRICS_TOKEN_FILE": f"/{'a' * 300}"})
    assert "File name too long" in unreadable


def test_a_bad_node_name_from_the_environment_is_told_without_a_line(file: Path) -> None:
    [problem] = problems(file, "", {"NODE_NAME": "a/b"})
    assert problem.startswith(f"{file}: node: $NODE_NAME 'a/b' is no node's name; expected")


def test_the_node_is_the_files_word_then_node_name_then_the_hostname(file: Path) -> None:
    assert loaded(file, 'node = "mine"').node == "mine"
    assert loaded(file, "").node == "n1"
    assert loaded(file, "", {}).node == os.uname().nodename


def test_an_empty_file_is_the_default_configuration(file: Path) -> None:
    config = loaded(file, "")
    assert config == default(ENVIRON)
    assert config.run_dir == Path("/run/sickbay")
    assert config.socket == Path("/run/sickbay/agent.sock")
    assert config.uplink.address == ""
    assert config.expected_gpus is None
    assert set(config.checks) == {spec.name for spec in registry.SPECS}
    for spec in registry.SPECS:
        assert config.checks[spec.name].interval == spec.interval
        assert dict(config.checks[spec.name].options) == {o.name: o.default for o in spec.options}


def test_values_arrive_in_seconds_and_paths(file: Path, tmp_path: Path) -> None:
    secret = text_file(tmp_path / "token", "t")
    config = loaded(
        file,
        f"""
        run_dir = "{tmp_path}"
        metrics_listen = ":9810"
        [expect]
        gpus = 8
        [aggregator]
        address = "[2001:db8::1]:7443"
        ca_file = "{secret}"
        token_file = "{secret}"
        server_name = "sickbay"
        [kernel_log]
        boot_grace = "1h30m"
        [nvml]
        deadline = "2500ms"
        [checks.reach]
        on = false
        interval = "1.5m"
        """,
    )
    assert config.socket == tmp_path / "agent.sock"
    assert config.metrics_listen == ":9810"
    assert config.expected_gpus == 8
    assert config.uplink.token_file == secret
    assert config.kernel_log.boot_grace == 5400.0
    assert config.nvml.deadline == 2.5
    assert (config.checks["reach"].on, config.checks["reach"].interval) == (False, 90.0)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "unix:/run/a.sock"]
)
def test_plaintext_stays_allowed_on_this_machine(file: Path, address: str) -> None:
    assert loaded(file, f'[aggregator]\naddress = "{address}"').uplink.address == address


def test_plaintext_to_elsewhere_is_allowed_by_a_flag_that_says_insecure(file: Path) -> None:
    text = '[aggregator]\naddress = "10.0.0.1:1"\ninsecure_plaintext = true'
    assert loaded(file, text).uplink.insecure_plaintext


def test_the_kernel_log_may_be_missing_where_nobody_wrote_it_down(file: Path) -> None:
    assert loaded(file, "[kernel_log]\nenabled = false").kernel_log.path == Path("/dev/kmsg")


def test_checks_are_left_unread_for_whoever_only_asks_the_agent(file: Path) -> None:
    file.write_text("[checks.nonsense]\non = 1\n[expect]\ngpus = 8\n")
    config = load(file, ENVIRON, with_checks=False)
    assert config.expected_gpus == 8
    assert config.checks == {}


def test_every_option_of_every_check_refuses_a_value_of_another_kind(file: Path) -> None:
    for spec in registry.SPECS:
        for option in spec.options:
            text = f"[checks.{spec.name}]\n{option.name} = 1979-05-27\n"
            [problem] = problems(file, text)
            where = f"{file}:2: checks.{spec.name}.{option.name}: "
            assert problem.startswith(where), problem
            assert problem.endswith(f"; expected {option.kind.value}")


def test_the_names_of_checks_and_options_fit_into_the_file_without_quotes() -> None:
    names = [spec.name for spec in registry.SPECS]
    assert len(set(names)) == len(names)
    for spec in registry.SPECS:
        assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", spec.name), spec.name
        options = [option.name for option in spec.options]
        assert len(set(options)) == len(options)
        assert not {"on", "interval", "deadline"} & set(options)
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in options)


def test_the_example_configuration_loads(tmp_path: Path) -> None:
    example = (REPOSITORY / "deploy/agent.toml").read_text()
    for name in re.findall(r'_file = "([^"]+)"', example):
        stand_in = text_file(tmp_path / Path(name).name, "x")
        example = example.replace(name, str(stand_in))
    (tmp_path / "agent.toml").write_text(example)
    load(tmp_path / "agent.toml", ENVIRON)
    # Commented lines in the example are valid when they are uncommented as they are.
    bare = re.sub(r"^#(\[|[a-z_]+ = )", r"\1", example, flags=re.MULTILINE)
    for name in re.findall(r'_file = "(/[^"]+)"', bare):
        if not Path(name).exists():
            (tmp_path / Path(name).name).write_text("x")
            bare = bare.replace(name, str(tmp_path / Path(name).name))
    (tmp_path / "agent.toml").write_text(bare)
    load(tmp_path / "agent.toml", ENVIRON)


def test_a_fifo_as_configuration_is_read_and_a_socket_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        with pytest.raises(ConfigError, match="can't be read"):
            load(path, ENVIRON)


@pytest.mark.parametrize(
    ("aggregator", "more", "refused"),
    [
        ('address = "10.0.0.1:1"\ninsecure_plaintext = true', "", True),
        ('address = "10.0.0.1:1"\ninsecure_plaintext = true', "insecure_loopback = true", True),
        ('address = "127.0.0.1:1"', "", True),
        ('address = "127.0.0.1:1"', "insecure_loopback = true", False),
        ('address = "unix:/run/sickbay.sock"', "", False),
        ('address = "10.0.0.1:1"\nca_file = "/etc/passwd"', "", False),
    ],
)
def test_orders_over_plaintext_are_refused(
    file: Path, aggregator: str, more: str, *, refused: bool
) -> None:
    text = f'[aggregator]\n{aggregator}\n[repair]\nallow = ["reboot"]\n{more}\n'
    if refused:
        [told] = problems(file, text)
        assert "repair.allow" in told
        assert "come in plaintext" in told
    else:
        assert loaded(file, text).repair.allow == ("reboot",)
