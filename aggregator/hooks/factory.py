"""The configured hooks."""

import random
from collections.abc import Callable, Sequence

from aggregator.config.drain import DrainConfig, HookSection
from aggregator.hooks.command import CommandHook
from aggregator.hooks.retried import RetriedHook
from aggregator.hooks.webhook import WebhookHook
from aggregator.jobs.settings import NoticeWebhook
from aggregator.quarantine.drain.hooks import Hook, HookRules


def hook_rules(drain: DrainConfig, *, wall: Callable[[], float]) -> HookRules:
    """``wall`` is wall clock seconds."""
    pre_evict, post_release = drain.pre_evict, drain.post_release
    return HookRules(
        pre_evict=_hook(pre_evict, wall),
        pre_evict_timeout=pre_evict.timeout,
        go_on=pre_evict.on_failure == "go_on",
        post_release=_hook(post_release, wall),
        post_release_timeout=post_release.timeout,
        at_once=drain.hooks_at_once,
    )


def _hook(section: HookSection, wall: Callable[[], float]) -> Hook | None:
    if section.webhook is not None:
        return WebhookHook(section.webhook.url, section.webhook.secret_file, wall=wall)
    return CommandHook(section.command) if section.command else None


def notice_hooks(
    webhooks: Sequence[NoticeWebhook], *, wall: Callable[[], float]
) -> list[tuple[NoticeWebhook, Hook]]:
    """Each webhook of ``drain.notice`` with what calls it."""
    rng = random.Random()  # noqa: S311 - jitter, no secret
    return [
        (one, RetriedHook(WebhookHook(one.url, one.secret_file, wall=wall), rng))
        for one in webhooks
    ]
