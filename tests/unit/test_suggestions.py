"""A misspelt command or option is answered with the nearest one, in every program."""

import subprocess
import sys

import pytest

from aggregator.cli.command_line import parser_for
from aggregator.daemon_cli.main import parser as aggregator_parser
from nodeagent.terminal.arguments import parse as parse_agent
from nodeagent.terminal.run_arguments import BadUsage


def parse(program: str, *words: str) -> object:
    if program == "sickbay-agent":
        return parse_agent(words)
    parser = parser_for("sickbay", {}) if program == "sickbay" else aggregator_parser()
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("sickbay stauts", "Did you mean: sickbay status"),
        ("sickbay history --sicne 3", "Did you mean: --since"),
        ("sickbay nodes --stat held", "Did you mean: --state"),
        ("sickbay zzz", "See: sickbay --help"),
        ("sickbay list", "Did you mean: sickbay alert list"),
        ("sickbay alert-list", "Did you mean: sickbay alert list"),
        ("sickbay-aggregator explan", "Did you mean: sickbay-aggregator policy explain"),
        ("sickbay alert lst", "Did you mean: sickbay alert list"),
        ("sickbay resume --yes", "--yes is an option of: sickbay bisect, sickbay quarantine"),
        ("sickbay wait node-1 --fro drained", "Did you mean: --for"),
        ("sickbay-aggregator rnu", "Did you mean: sickbay-aggregator run"),
        ("sickbay-aggregator run --confg=a", "Did you mean: --config"),
        ("sickbay-aggregator policy expalin", "Did you mean: sickbay-aggregator policy explain"),
        ("sickbay-aggregator policy explain --falt xid:79", "Did you mean: --fault"),
        ("sickbay-aggregator run --strict", "an option of: sickbay-aggregator policy check"),
        ("sickbay-agent chek", "Did you mean: sickbay-agent check"),
        ("sickbay-agent config chek", "Did you mean: sickbay-agent config check"),
        ("sickbay-agent check --timout 5s", "Did you mean: --timeout"),
        ("sickbay-agent test --profle gemm", "Did you mean: --profile"),
        ("sickbay-agent --slurm", "--slurm is an option of: sickbay-agent check"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_word(
    line: str, suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, BadUsage)) as ended:
        parse(*line.split())
    refused: BaseException = ended.value
    assert isinstance(refused, BadUsage) or refused.args == (2,)
    assert suggestion in f"{refused} {capsys.readouterr().err}"


def test_a_line_without_an_option_has_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    for program in ("sickbay", "sickbay-aggregator"):
        with pytest.raises(SystemExit):
            parse(program)
    assert "Did you mean" not in capsys.readouterr().err


def test_an_agent_imports_difflib_only_after_a_mistake() -> None:
    script = (
        "import sys; from nodeagent.terminal.arguments import parse; parse(['check']); "
        "print('difflib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
