"""The error counters that are compared across the fleet: one row each. Pure.

Agents send them as measurements: counts since the driver loaded or in the part's life, modulo 2^31.
"""

from collections.abc import Mapping
from dataclasses import dataclass

#: The check that reports a precursor, in the aggregator's own name. Its reason is the counter.
CHECK = "fleet-precursor"


@dataclass(frozen=True, slots=True)
class Counter:
    """One kind of counter. ``follows`` is what published cases report after such a rise."""

    name: str
    what: str
    follows: str


_ROWS = (
    # NVIDIA/NVSentinel#1748, NVIDIA/DCGM#313: one GPU of 2,304 counted 17,700 a second under load.
    # "A Close Look at HBM Errors" (ATC 2024): no clear correlation with uncorrectable errors.
    Counter(
        "ecc-corrected",
        "corrected ECC errors",
        "such a GPU slows its job; uncorrectable errors need not follow (ATC 2024)",
    ),
    # arXiv 2605.09370: 254 corrected remaps in 55 days, then the GPU was lost.
    Counter("row-remaps", "remapped memory rows", "GPUs with a rising count were lost weeks later"),
    # marin-community/marin#9086: the one of 5,760 links with recoveries failed five days later.
    Counter(
        "nvlink-recoveries",
        "NVLink recoveries",
        "such a link failed five days later and faulted its rack (marin#9086)",
    ),
    # DCGM's policy for NVLink up to generation 4: one replay a minute fails.
    Counter("nvlink-replays", "NVLink replays", "a link with replays may fail under load"),
    Counter("pcie-errors", "PCIe replays and correctable errors", "such a link loses speed"),
    # UFM's plugin isolates a port at 2.88 symbol errors in 12 minutes (Mellanox/ufm_sdk_3.0).
    Counter("ib-symbol-errors", "InfiniBand symbol errors", "clean or replace cable and optics"),
    Counter("ib-recoveries", "InfiniBand link recoveries", "clean or replace cable and optics"),
    # Schroeder et al., SIGMETRICS 2009: 70 to 80 % of uncorrectable errors followed corrected ones.
    Counter(
        "dimm-corrected",
        "corrected memory errors of a DIMM",
        "most uncorrectable errors of DIMMs had corrected ones before (SIGMETRICS 2009)",
    ),
    Counter("nvme-media-errors", "NVMe media errors", "errors on several days precede a failure"),
)

COUNTERS: Mapping[str, Counter] = {row.name: row for row in _ROWS}
