"""A plug-in of pytest: several processes with the same tests run each file of tests in one of them.

    pytest -p tests.claims --claims FOLDER tests/kube tests/e2e

A process claims a file when it has finished its last one, so the processes end at nearly the same
time whatever each file takes. It imports only the files that it claims. A claim is a file in
FOLDER, which must be empty at the start. Tests of one file run in one process and in their order,
as fixtures of a module expect. Each process has its own session fixtures, such as the control
plane.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

#: Claimed first, in this order: a long file that is begun last keeps one process busy alone. Files
#: that compute are among those that wait, so that no processor idles in the first minutes.
LONG_FILES: Sequence[str] = (
    "tests/e2e/test_agent_repairs.py",
    "tests/e2e/test_demo.py",
    "tests/e2e/test_bursts.py",
    "tests/e2e/test_three_replicas.py",
    "tests/kube/test_kube_drain_blocked.py",
    "tests/kube/test_new_nodes_on_kubernetes.py",
    "tests/e2e/test_benchmarks.py",
    "tests/e2e/test_bench_scale.py",
    "tests/e2e/test_held_actions.py",
    "tests/e2e/test_etcd_stopped.py",
    "tests/kube/test_kube_informer.py",
    "tests/e2e/test_restarts_and_modes.py",
    "tests/e2e/test_faulty_api_server.py",
    "tests/e2e/test_tutorial.py",
    "tests/kube/test_kube_drain.py",
    "tests/e2e/test_fault_to_release.py",
    "tests/kube/test_reinstall.py",
    "tests/kube/test_control_plane.py",
    "tests/e2e/test_returned_nodes.py",
    "tests/kube/test_job_repairer.py",
    "tests/kube/test_admission_policies.py",
    "tests/kube/test_object_repairers.py",
    "tests/kube/test_limit_scenarios.py",
    "tests/kube/test_cli_on_kubernetes.py",
    "tests/kube/test_page_access.py",
    "tests/kube/test_release_scenarios.py",
    "tests/e2e/test_etcd_restored.py",
    "tests/e2e/test_object_repairs.py",
    "tests/kube/test_lost_marks.py",
    "tests/kube/test_workload_drains.py",
    "tests/kube/test_node_conditions.py",
    "tests/agent/test_route_lookup.py",
    "tests/aggregator/test_real_bmcs.py",
    "tests/targets/test_targets.py",
    "tests/aggregator/test_hostile_process.py",
    "tests/aggregator/test_slurm_process.py",
    "tests/web/test_browser.py",
    "tests/aggregator/test_slurm_tests.py",
    "tests/aggregator/test_fleet_bench.py",
    "tests/aggregator/test_slurm_cluster.py",
    "tests/site/test_site.py",
    "tests/aggregator/test_local_replicas.py",
    "tests/aggregator/test_controller_state_machine.py",
    "tests/aggregator/test_relay.py",
    "tests/web/test_screenshot.py",
    "tests/unit/test_outliers.py",
    "tests/aggregator/test_slurm_reboot.py",
    "tests/aggregator/test_history.py",
    "tests/unit/test_precursors.py",
    "tests/agent/test_repair_permission.py",
    "tests/aggregator/test_history_postgres.py",
    "tests/aggregator/test_idle_nodes.py",
    "tests/agent/test_repair_killed.py",
    "tests/web/test_gateway_page.py",
    "tests/aggregator/test_faulty_agents.py",
    "tests/web/test_cli_bisect.py",
    "tests/web/test_cli_test.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--claims", metavar="FOLDER", type=Path, help="share the files of tests")


def pytest_configure(config: pytest.Config) -> None:
    folder: Path | None = config.getoption("claims")
    if folder is not None and not config.option.collectonly:
        config.pluginmanager.register(_Claims(folder))


class _Claims:
    """The files that pytest finds are listed first. A file is collected when it is claimed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[pytest.File] = []
        self._listed = False
        self._file: pytest.File | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> object | None:
        """A file is not imported for the list, because each process would import them all.

        That would take 4 s of a processor in each of them.
        """
        if self._listed or not isinstance(collector, pytest.File):
            return None
        self._files.append(collector)
        return pytest.CollectReport(collector.nodeid, "passed", None, [])

    def pytest_report_collectionfinish(self) -> str:
        return f"{len(self._files)} files, each of which is collected when it is claimed"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool | None:
        """For a claimed file what pytest's own hook does for all files: collect, choose, tell.

        A file that cannot be imported has no tests. Its report is an error, which fails the run.
        """
        if self._file is None:
            return None
        config, plugins = session.config, session.config.pluginmanager
        session.items = list(session.genitems(self._file))
        config.hook.pytest_collection_modifyitems(
            session=session, config=config, items=session.items
        )
        session.testscollected += len(session.items)
        # The terminal would print the number of tests for each file.
        terminal = plugins.get_plugin("terminalreporter")
        plugins.subset_hook_caller("pytest_collection_finish", [terminal])(session=session)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """As pytest's own loop, over the files that this process claims."""
        self._listed = True
        if session.testsfailed:
            return None  # pytest's own loop reports folders and arguments that are wrong
        claimed = self._claimed(session)
        item = next(claimed, None)
        while item is not None:
            following = next(claimed, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        return True

    def _claimed(self, session: pytest.Session) -> Iterator[pytest.Item]:
        """The tests of each file that no other process has claimed."""
        for file in sorted(self._files, key=_rank):
            if _claim(self._folder, file.nodeid):
                self._file = file
                session.config.hook.pytest_collection(session=session)
                yield from session.items


def _rank(file: pytest.File) -> int:
    path = file.nodeid
    return LONG_FILES.index(path) if path in LONG_FILES else len(LONG_FILES)


def _claim(folder: Path, path: str) -> bool:
    claim = folder / f"{path.replace('/', ':')}.claim"
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
