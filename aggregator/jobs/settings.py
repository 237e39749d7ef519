"""The section ``jobs``, a site's own markers and the defaults of the formulas; ``drain.notice``."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import AfterValidator, Field

from aggregator.configfile.section import Section, SectionDataclass, Strings
from aggregator.configfile.values import (
    Duration,
    HttpUrl,
    LabelKeys,
    NamespacePattern,
    OrdinaryPath,
    Selector,
    without_places,
)


@dataclass(frozen=True, slots=True)
class JobRules(SectionDataclass):
    """``job_keys`` and ``team_keys``: labels or annotations of pods that name the job and the team,
    read before the shipped ones. Durations are seconds, for pods that state none:
    ``checkpoint_interval`` from one checkpoint of a job to the next, ``restart_time`` from the stop
    of a job to its first step.
    """

    job_keys: LabelKeys = ()
    """Labels or annotations of pods that name a job (docs/jobs.md), before the shipped ones."""
    team_keys: LabelKeys = ()
    """Those that name its team."""
    checkpoint_interval: Annotated[Duration, Field(ge=1, le=7 * 86400)] = 3600.0
    """Of jobs that state none: from one checkpoint to the next."""
    restart_time: Annotated[Duration, Field(ge=1, le=86400)] = 600.0
    """Of jobs that state none: from a stop to the first step."""


class NoticeWebhook(Section):
    """The address that receives the notices to pods of matching namespaces with these labels."""

    match: NamespacePattern
    """The namespaces whose notices the webhook receives."""
    pods: Selector = None
    """Only notices to pods with all of these labels."""
    url: Annotated[HttpUrl, AfterValidator(without_places)]
    """The address that is called, http or https."""
    secret_file: OrdinaryPath
    """The content of this file signs every request (HMAC)."""

    def takes(self, namespace: str, labels: Mapping[str, str]) -> bool:
        return fnmatchcase(namespace, self.match) and has_labels(labels, self.pods)


@dataclass(frozen=True, slots=True)
class NoticeRules(SectionDataclass):
    """``within``: a workload gets a notice this long (seconds) before its eviction; 0: no notice.

    Only pods of ``namespaces`` with all labels of ``pods`` get one. ``never_for``: codes of faults
    after which nobody gets one, in addition to the shipped ones.
    """

    within: Annotated[Duration, Field(ge=0, le=86400)] = 0.0
    """A workload gets a notice (docs/jobs.md#a-notice-before-the-eviction) this long before its
    eviction, 24 hours at most. ``"0s"``: no notice.
    """
    namespaces: Annotated[tuple[NamespacePattern, ...], Field(strict=False)] = ()
    """Only workloads of namespaces that match one of these get it. Empty: of every namespace."""
    pods: Selector = None
    """Only pods with all of these labels get it."""
    never_for: Strings = ()
    """Further codes of faults, as patterns, after which no workload gets one."""
    webhooks: Annotated[tuple[NoticeWebhook, ...], Field(strict=False)] = ()

    def wants(self, namespace: str, labels: Mapping[str, str]) -> bool:
        if self.namespaces and not any(fnmatchcase(namespace, one) for one in self.namespaces):
            return False
        return has_labels(labels, self.pods)


def has_labels(labels: Mapping[str, str], wanted: Mapping[str, str] | None) -> bool:
    return all(labels.get(key) == value for key, value in (wanted or {}).items())
