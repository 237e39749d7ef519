"""The section ``drain``: which pods leave a node, how, and the site's own steps before and
after.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from aggregator.configfile.section import Positive, Section, Strings
from aggregator.configfile.values import (
    Duration,
    HttpUrl,
    Labels,
    NamespacePattern,
    OrdinaryPath,
    filled_with,
)
from aggregator.configfile.yaml_source import Key
from aggregator.quarantine.decide.drain_plan import Leave, NamespaceRule
from aggregator.quarantine.decide.gangs import Gangs


class DrainNamespace(Section):
    """How the pods of some namespaces leave. The first that matches decides."""

    match: NamespacePattern
    policy: Annotated[Leave, Field(strict=False)]
    wait: Duration | None = None
    """The pods may complete for so long since the drain began."""
    force_after: Duration | None = None
    """Past it they are deleted, their budgets notwithstanding. None: at the drain's deadline."""

    def rule(self) -> NamespaceRule:
        return NamespaceRule(self.match, self.policy, self.wait or 0.0, self.force_after)


class HookWebhook(Section):
    """The address that the hook calls over HTTP, and the file with the secret that signs the
    request.
    """

    url: HttpUrl
    secret_file: OrdinaryPath


_FILLED = ("node", "reason", "action", "kind", "incident", "quarantine", "hook")


class HookSection(Section):
    """A site's own step: a command or a webhook; neither means no step."""

    command: Annotated[Strings, filled_with(*_FILLED)] = ()
    webhook: HookWebhook | None = None


class PreEvict(HookSection):
    """The step before the first eviction. ``timeout`` counts from its first attempt (seconds)."""

    timeout: Annotated[Duration, Field(ge=1)] = 600.0
    on_failure: Literal["wait", "go_on"] = "wait"


class PostRelease(HookSection):
    """The step after a release; given up after ``timeout`` (seconds)."""

    timeout: Annotated[Duration, Field(ge=1)] = 60.0


class DrainConfig(Section):
    """How pods leave. Durations are seconds."""

    deadline: Annotated[Duration, Field(ge=60)] = 7 * 86400.0
    delete_empty_dir_data: bool = False
    evict_unmanaged: bool = False
    evict_unwilling: bool = False
    """Evict pods that ask autoscalers not to move them."""
    protected_selector: Labels = ""
    """``key=value,key=value``: a pod that has all of these labels is never evicted."""
    stuck_after: Annotated[Duration, Field(ge=10)] = 600.0
    namespaces: Annotated[tuple[DrainNamespace, ...], Field(strict=False)] = ()
    gangs: Annotated[Gangs, Field(strict=False)] = Gangs.NODE
    gang_pods: Positive = 256
    off_load_balancers: bool = True
    pre_evict: PreEvict = PreEvict()
    post_release: PostRelease = PostRelease()
    hooks_at_once: Positive = 8

    def protected_labels(self) -> dict[str, str] | None:
        """The selector as labels, or None if no pod is protected."""
        if not self.protected_selector:
            return None
        pairs = (pair.partition("=") for pair in self.protected_selector.split(","))
        return {key: value for key, _, value in pairs}


def cross_field_errors(drain: DrainConfig) -> Iterator[tuple[Key, str]]:
    """Settings that are valid alone but not together: the key, and the value to write instead."""
    seen: set[str] = set()
    for number, one in enumerate(drain.namespaces):
        key = ("drain", "namespaces", number)
        if seen & {one.match, "*"}:
            yield (*key, "match"), f'"{one.match}" never comes to its turn; the first match decides'
        seen.add(one.match)
        yield from _times(one, key)
    for name, hook in (("pre_evict", drain.pre_evict), ("post_release", drain.post_release)):
        if hook.command and hook.webhook is not None:
            yield ("drain", name), "has a command and a webhook; expected one of them"


def _times(one: DrainNamespace, key: Key) -> Iterator[tuple[Key, str]]:
    if one.wait is not None and one.policy not in (Leave.WAIT, Leave.FORCE):
        text = (
            f'no pod is waited for under policy "{one.policy}"; expected policy "wait" or "force"'
        )
        yield (*key, "wait"), text
    if one.wait is None and one.policy is Leave.WAIT:
        yield key, 'policy "wait" does not say how long; expected wait, such as "2h"'
    if one.force_after is not None and one.policy is not Leave.FORCE:
        text = f'no pod is deleted by force under policy "{one.policy}"; expected policy "force"'
        yield (*key, "force_after"), text
    if one.force_after is not None and one.force_after < (one.wait or 0.0):
        text = "sooner than its wait is over; expected a longer time than wait"
        yield (*key, "force_after"), text
    if one.force_after is not None and one.force_after < 60:
        text = 'too soon for a pod to leave by itself; expected at least "1m"'
        yield (*key, "force_after"), text
