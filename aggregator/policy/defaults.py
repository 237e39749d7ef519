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
    return _load(read_text(site) if site is not None else None, str(site or ""))


def read_with_warnings(site: Path) -> tuple[Policy, list[ConfigProblem]]:
    """The same, and the parts of the file that are allowed and likely a mistake.

    Of one reading: the file may be another one, and no policy, at the next.
    """
    text = read_text(site)
    policy = _load(text, str(site))
    return policy, warnings(policy, text, str(site), _checks())


def _load(site: str | None, site_name: str) -> Policy:
    shipped = files("aggregator.policy")
    catalogue, rules = (
        (shipped / name).read_text("utf-8") for name in ("catalogue.yaml", "rules.yaml")
    )
    return load_policy(catalogue, rules, site, site_name)


def lint_question(policy: Policy, check: str, status: str, reason: str) -> str:
    """The likely slip in a person's text for a check, its status and its reason, or empty."""
    return unfamiliar(policy, check, reason, _checks(), degraded=status == "degraded")


def _checks() -> Checks:
    return parse_checks((files("aggregator.policy") / "checks.yaml").read_text("utf-8"))
