"""The shipped policy, with a site's file on top: reads the texts."""

from importlib.resources import files
from pathlib import Path

from aggregator.configfile.yaml_source import ConfigProblem, read_text
from aggregator.policy.lint import Checks, parse_checks, unfamiliar, warnings
from aggregator.policy.load import load_policy
from aggregator.policy.rules import Policy


def read_policy(site: Path | None = None) -> Policy:
    """The shipped rules with those of the file at ``site``.

    Raises `ConfigError` with every problem of the file.
    """
    shipped = files("aggregator.policy")
    return load_policy(
        (shipped / "catalogue.yaml").read_text("utf-8"),
        (shipped / "rules.yaml").read_text("utf-8"),
        read_text(site) if site is not None else None,
        str(site or ""),
    )


def lint_file(site: Path, policy: Policy) -> list[ConfigProblem]:
    """The parts of the file at ``site``, read into ``policy``, that are allowed and likely a
    mistake.

    Raises `ConfigError` where it can't be read any more.
    """
    return warnings(policy, read_text(site), str(site), _checks())


def lint_question(policy: Policy, check: str, status: str, reason: str) -> str:
    """The likely slip in a person's text for a check, its status and its reason, or empty."""
    return unfamiliar(policy, check, reason, _checks(), degraded=status == "degraded")


def _checks() -> Checks:
    return parse_checks((files("aggregator.policy") / "checks.yaml").read_text("utf-8"))
