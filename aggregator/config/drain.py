"""The section ``drain``: which pods leave a node, how, and the site's own steps before and
after.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from aggregator.configfile.section import Positive, Section, Strings
from aggregator.configfile.values import (
    Duration,
    HttpUrl,
    OrdinaryPath,
    filled_with,
    without_places,
)
from aggregator.configfile.yaml_source import Key
from aggregator.jobs.settings import NoticeRules
from aggregator.quarantine.decide.drain_plan import DrainRules, Leave, NamespaceRule

if TYPE_CHECKING:
    from aggregator.config.settings import Config


class HookWebhook(Section):
    """The address that the hook calls over HTTP, and the file with the secret that signs the
    request.
    """

    url: Annotated[HttpUrl, AfterValidator(without_places)]
    """A webhook that is called instead of a command, http or https."""
    secret_file: OrdinaryPath
    """The content of this file signs every request (HMAC)."""


_FILLED = ("node", "reason", "action", "kind", "incident", "quarantine", "hook")


class HookSection(Section):
    """A site's own step: a command or a webhook; neither means no step."""

    command: Annotated[Strings, filled_with(*_FILLED)] = ()
    """The command: a list of arguments, no shell. ``{node}``, ``{reason}`` and more are filled in
    (docs/drain.md#the-hook).
    """
    webhook: HookWebhook | None = None


class PreEvict(HookSection):
    """The step before the first eviction. ``timeout`` counts from its first attempt (seconds)."""

    timeout: Annotated[Duration, Field(ge=1)] = 600.0
    """It has this long to be done, restarts of the aggregator included."""
    on_failure: Literal["wait", "go_on"] = "wait"
    """The behaviour after that: ``wait`` evicts no pod, alerts and keeps trying; ``go_on`` evicts.
    """


class PostRelease(HookSection):
    """The step after a release; given up after ``timeout`` (seconds)."""

    timeout: Annotated[Duration, Field(ge=1)] = 60.0
    """After this long it is given up, and alerted."""


@dataclass(frozen=True, slots=True)
class DrainConfig(DrainRules):
    """How pods leave, the site's own steps, and the notices to workloads."""

    notice: NoticeRules = field(default_factory=NoticeRules)
    pre_evict: PreEvict = field(default_factory=PreEvict)
    post_release: PostRelease = field(default_factory=PostRelease)
    slurm_jobs_for: Duration = 7 * 86400.0
    """This long after the drain began, a pod of slurmd waits until Slurm has drained its node
    (docs/coexistence.md#slinky). ``"0s"``: it does not wait.
    """
    hooks_at_once: Positive = 8
    """At most this many hooks run at once, of those before evictions and after releases each."""


def cross_field_errors(config: "Config") -> Iterator[tuple[Key, str]]:
    """Settings that are valid alone but not together: the key, and the value to write instead."""
    drain = config.drain
    for number, one in enumerate(drain.namespaces):
        key = ("drain", "namespaces", number)
        if any(_covers(earlier, one) for earlier in drain.namespaces[:number]):
            yield (*key, "match"), f'"{one.match}" never comes to its turn; the first match decides'
        yield from _times(one, key)
    for name, hook in (("pre_evict", drain.pre_evict), ("post_release", drain.post_release)):
        if hook.command and hook.webhook is not None:
            yield ("drain", name), "has a command and a webhook; expected one of them"


def _covers(earlier: NamespaceRule, later: NamespaceRule) -> bool:
    """Whether every pod that the later rule matches is one of the earlier rule."""
    labels = (later.pods or {}).items()
    return earlier.match in ("*", later.match) and (earlier.pods or {}).items() <= labels


def _times(one: NamespaceRule, key: Key) -> Iterator[tuple[Key, str]]:
    if one.wait is not None and one.policy not in (Leave.WAIT, Leave.FORCE):
        text = (
            f'no pod is waited for under policy "{one.policy}"; expected policy "wait" or "force"'
        )
        yield (*key, "wait"), text
    if one.wait is None and one.policy is Leave.WAIT:
        yield key, 'policy "wait" has no time; expected wait, such as "2h"'
    if one.force_after is not None and one.policy is not Leave.FORCE:
        text = f'no pod is deleted by force under policy "{one.policy}"; expected policy "force"'
        yield (*key, "force_after"), text
    if one.force_after is not None and one.force_after < (one.wait or 0.0):
        text = "sooner than its wait is over; expected a longer time than wait"
        yield (*key, "force_after"), text
    if one.force_after is not None and one.force_after < 60:
        text = 'too soon for a pod to leave by itself; expected at least "1m"'
        yield (*key, "force_after"), text
