"""Every target of the Makefile: its small form, or the test that runs what it runs.

A small form takes seconds and makes no claim about figures: its exit code is right, its output has
some words, and a benchmark's JSON has its keys (docs read them).
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import nodes, page
from tests.bench.rows import SCALE

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class SmallForm:
    """A call of make. ``keys`` are those of NAME.json; ``planes``: control planes that it uses."""

    variables: Mapping[str, str] = field(default_factory=dict)
    code: int = 0
    says: str = ""
    keys: frozenset[str] = frozenset()
    planes: int = 0


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Too long, or it would change the tree: the files that test what its recipe runs, and why."""

    reason: str
    tests: tuple[str, ...] = ()


def keys(text: str, *more: str) -> frozenset[str]:
    return frozenset((*text.split(), *more))


_HISTORY = """
    fill_s mib open_ms node_month_rows node_month_ms node_month_p50_ms node_month_cpu_ms
    node_page_ms feed_ms back_ms busiest_ms stories_ms insert_per_s batch_p99_ms bound_ms retain_ms
"""
_SCENES = """
    nothing node_down one_way_loss rack_switch_down gateway_down target_down partition_in_halves
"""
_BASE = "registry.example.test/python@sha256:" + 64 * "0"

#: By the target's name.
BENCHMARKS: Mapping[str, SmallForm] = {
    "bench-taint": SmallForm(
        keys=keys(
            """taint_p50_ms taint_p99_ms limit_p50_ms limit_p99_ms beyond_p50 evicted_p50_ms
            taint_busy_disk_p50_ms taint_busy_disk_p99_ms trials"""
        ),
        planes=2,
    ),
    "bench-scale": SmallForm(keys=frozenset(key for _, key, _, _ in SCALE), planes=2),
    "bench-nodes": SmallForm(keys=frozenset(key for key, *_ in nodes.ROWS), planes=1),
    "bench-faults": SmallForm(
        keys=keys(
            """lost_agent_kill9 recovery_agent_kill9_p99_s lost_paused_alone
            recovery_paused_alone_p99_s recovery_p99_s double_evictions"""
        ),
        planes=1,
    ),
    "bench-repair": SmallForm(
        keys=keys(
            """decide_to_order_p50_ms decide_to_order_p99_ms requests_alone_p50_ms
            requests_alone_p99_ms beyond_p50 lost_orders double_orders reservations_left kills
            kill_nodes kill_attempts kill_attempts_in_flight kill_orders_sent_again kill_outcomes
            kills_wall_s orders_after_lost_place busy_node_acted_on cancel_lost cap_exceeded
            fence_breaches_other fence_orders fence_cancelled fence_schedules
            bisection_rounds_1024 bisection_wrong bisection_tests_p50
            bisection_tests_max bisection_link_rounds_1024 bisection_links_missed"""
        ),
        planes=1,
    ),
    "bench-hostile": SmallForm(
        keys=keys(
            """healthz_p99_ms healthz_quiet_p99_ms honest_taint_p50_ms honest_taint_p99_ms
            quiet_taint_p50_ms quiet_taint_p99_ms honest_taint_beyond rss_growth_mib
            honest_agents_refused streams_ended connections_ended trials"""
        ),
        planes=1,
    ),
    "bench-agent": SmallForm(
        keys=keys(
            """pss_mib pss_max_mib rss_mib cpu_percent cpu_s_per_hour
            idle_bytes_per_minute start_bytes processes bare_pss_mib
            bare_cpu_percent cpu_beyond seconds burst_cpu_s burst_messages burst_next_fault_ms
            burst_lines burst_seconds"""
        )
    ),
    "bench-network": SmallForm(
        keys=keys(
            "graphs nodes update_us",
            *(
                f"{scene}{condition}_{figure}"
                for scene in _SCENES.split()
                for condition in ("", "_noise", "_silent", "_noise_silent")
                for figure in ("precision", "recall", "false")
            ),
        )
    ),
    "bench-fleet": SmallForm(
        keys=keys(
            """precision explicit_recall by_check_recall quarantine_p50_s quarantine_p99_s
            by_check_p50_s by_check_p99_s false_per_day mass_event_quarantines
            rack_event_quarantines rack_events rack_event_alerts held held_by wrong_causes
            quarantines gpu_hours_lost gpu_hours_lost_no_system gpu_hours_lost_polling
            simulated_days events wall_s_one_seed seeds returned_p50_s returned_people_p50_s
            returned_sick returned_sick_causes repairs_over_limit repaired_twice
            gpu_hours_lost_with_repair gpu_hours_lost_with_people repair_orders
            repair_orders_failed repair_tests repairs_standing_at_the_end slow_precision
            slow_recall slow_nodes slow_findings slow_found_p50_min lead_share lead_median_h
            early_false_per_node_month hardware_faults precursor_findings rack_origin_right
            followers_evicted rack_origin_events rack_origin_explicit rack_origin_taken_p99_s
            nodes wall_s"""
        )
    ),
    "bench-jobs": SmallForm(
        keys=keys(
            """hours_error_percent jobs_unattributed gpu_hours_lost gpu_hours_reported stops
            reads_per_fault notices notices_answered asked_twice
            evicted_before_answer_or_deadline steps_lost_with_answer gpu_hours_kept_by_scope_gpu
            ready_p99_ms ready_launcher_p50_ms ready_prolog_p50_ms ready_command_p50_ms nodes
            simulated_days wall_s"""
        )
    ),
    "bench-history": SmallForm(
        # Without a PostgreSQL on the machine, SQLite's alone: the benchmark leaves the other out.
        keys=keys("rows sqlalchemy", *(f"sqlite_{name}" for name in _HISTORY.split()))
    ),
    "bench-slurm": SmallForm(
        keys=keys(
            """drain_p50_ms drain_p99_ms alone_p50_ms alone_p99_ms beyond_p50 lost double_writes
            takeover_s foreign_undone interleavings trials"""
        )
    ),
    "bench-page": SmallForm(keys=keys("nodes changes", *(key for key, *_ in page.ROWS))),
    # Its cluster needs Helm, which takes minutes to build: the small form reads the documented
    # commands. `make deploy-check` has the rest.
    "bench-install": SmallForm(keys=keys("commands files_by_hand")),
}
OTHERS: Mapping[str, SmallForm | Elsewhere] = {
    "help": SmallForm(says="make bench-taint"),
    "env": SmallForm(),
    "clean": SmallForm(),
    "figures": SmallForm({"FIGURES_OPTIONS": "--check"}),
    "trace": SmallForm(says="trace_calls"),
    "test-fast": SmallForm({"FAST_TESTS": "tests/unit/test_backoff.py"}, says="passed"),
    "fuzz": SmallForm(
        {"FUZZ_TESTS": "tests/unit/test_backoff.py", "FUZZ_SEED": "7"}, says="FUZZ_SEED=7"
    ),
    "release": SmallForm(
        {
            "DRY_RUN": "1",
            "REGISTRY": "registry.example.test/health",
            "INDEX": "https://index.example.test/",
            "REMOTE": "upstream",
            "BASE": _BASE,
            "KEY": "release.key",
        },
        # Of a tree that is no release: each obstacle is named, and the commands all the same.
        code=2,
        says="twine upload",
    ),
    "packages": SmallForm(
        {"PACKAGES_OPTIONS": "--python /nonexistent/python3"}, code=2, says="/nonexistent/python3"
    ),
    "images": Elsewhere(
        "it builds for minutes",
        ("tests/packages/test_images.py", "tests/unit/test_release_images.py"),
    ),
    "gpu-check": Elsewhere("without a GPU it is refused", ("tests/targets/test_targets.py",)),
    "bench": Elsewhere("each benchmark has a small form of its own"),
    "lock": Elsewhere("it needs the package index, and changes the tree"),
    "proto": Elsewhere("it changes the tree", ("tests/unit/test_generated.py",)),
    "chart": Elsewhere("it changes the tree", ("tests/chart/test_chart.py",)),
    "docs": Elsewhere("the site takes half a minute of a processor", ("tests/site/test_site.py",)),
    "docs-serve": Elsewhere("as docs, then http.server of Python", ("tests/site/test_site.py",)),
    "docs-reference": Elsewhere("it changes the tree", ("tests/unit/test_reference.py",)),
    "demo": Elsewhere("its tests run the target", ("tests/e2e/test_demo.py",)),
    "demo-cluster": Elsewhere("its tests run the target", ("tests/e2e/test_demo.py",)),
    "demo-slurm": Elsewhere(
        "its test runs the target", ("tests/aggregator/test_slurm_process.py",)
    ),
    "screenshots": Elsewhere(
        "its two parts are tests", ("tests/web/test_screenshot.py", "tests/e2e/test_tutorial.py")
    ),
    "test-setup": Elsewhere("it installs packages; make test begins with it"),
    "test": Elsewhere("it runs this test", ("tests/unit/test_side_by_side.py",)),
    "test-pythons": Elsewhere("unit tests take minutes", ("tests/unit/test_pythons.py",)),
    "test-versions": Elsewhere(
        "it builds an older Kubernetes for minutes", ("tests/kube/test_control_plane.py",)
    ),
    "test-changed": Elsewhere("its tests depend on the branch", ("tests/unit/test_changed.py",)),
    "test-images": Elsewhere("it takes minutes", ("tests/packages/test_images.py",)),
    "test-packages": Elsewhere("it takes minutes", ("tests/packages/test_debian_packages.py",)),
    "deploy-check": Elsewhere("it builds Helm for minutes", ("tests/chart/test_chart.py",)),
    "mutants": Elsewhere("one mutant takes 14 s of a processor", ("tests/unit/test_mutants.py",)),
    "lint": Elsewhere("make test runs it beside the tests", ("tests/unit/test_lint.py",)),
    "format": Elsewhere("it changes the tree, by the programs of lint"),
}
TARGETS: Mapping[str, SmallForm | Elsewhere] = {**BENCHMARKS, **OTHERS}


def make(
    target: str, variables: Mapping[str, str] | None = None, *options: str, **environ: str
) -> "subprocess.CompletedProcess[str]":
    """Run a target as a person would; variables of an outer make are left out."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    given = [f"{name}={text}" for name, text in (variables or {}).items()]
    return subprocess.run(
        ["make", "--no-print-directory", *options, target, *given],
        cwd=ROOT,
        env=clean | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
