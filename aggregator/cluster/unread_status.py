"""Writes to a Quarantine whose status this version can't read in whole. Pure.

A later version wrote that status before a downgrade, or writes it next to this one in a rollout. It
may have an attempt at a repair in it that is under way, which a write of the whole would forget.
"""

from aggregator.cluster.port import Conflict, Phase, Quarantine, QuarantineStatus


def expect_lossless(quarantine: Quarantine, status: QuarantineStatus) -> None:
    """Raises Conflict unless the write is a step of its release, which keeps the unread fields."""
    if quarantine.unread and status.phase is not Phase.RELEASING:
        raise Conflict(
            f"quarantine {quarantine.node} has a status that this version can't read in whole, and "
            f"does not write: {quarantine.unread}"
        )
