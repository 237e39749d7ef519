"""The shipped policy, with a site's file on top: where the texts come from."""

from importlib.resources import files
from pathlib import Path

from aggregator.policy.load import load_policy
from aggregator.policy.rules import Policy
from aggregator.yaml_lines import read_text


def read_policy(site: Path | None = None) -> Policy:
    """The shipped rules with those of the file at ``site``.

    Raises `ConfigError` with all that is wrong with the file.
    """
    shipped = files("aggregator.policy")
    return load_policy(
        (shipped / "catalogue.yaml").read_text("utf-8"),
        (shipped / "rules.yaml").read_text("utf-8"),
        read_text(site) if site is not None else "",
        str(site or ""),
    )
