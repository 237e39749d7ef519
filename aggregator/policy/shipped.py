"""The shipped policy, with a site's file on top: where the texts come from."""

from importlib.resources import files
from pathlib import Path

from aggregator.policy.lint import Checks, parse_checks, unfamiliar, warnings
from aggregator.policy.load import load_policy
from aggregator.policy.rules import Policy
from aggregator.reading.yaml_lines import Problem, read_text


def read_policy(site: Path | None = None) -> Policy:
    """The shipped rules with those of the file at ``site``.

    Raises `ConfigError` with all that is wrong with the file.
    """
    shipped = files("aggregator.policy")
    return load_policy(
        (shipped / "catalogue.yaml").read_text("utf-8"),
        (shipped / "rules.yaml").read_text("utf-8"),
        read_text(site) if site is not None else None,
        str(site or ""),
    )


def odd(site: Path, policy: Policy) -> list[Problem]:
    """What is allowed in the file at ``site``, which ``policy`` has read, and likely a mistake.

    Raises `ConfigError` where it can't be read any more.
    """
    return warnings(policy, read_text(site), str(site), _checks())


def oddly_asked(policy: Policy, check: str, reason: str) -> str:
    """What is most likely a slip in a person's word for a check and its reason; or empty."""
    return unfamiliar(policy, check, reason, _checks())


def _checks() -> Checks:
    return parse_checks((files("aggregator.policy") / "checks.yaml").read_text("utf-8"))
