"""A whole run: draw mutants, find the tests that fit, try each mutant."""

import gc
import hashlib
import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import equivalent, packages, pytest_plugin, sites, trials
from tests.mutants.children import run_each
from tests.mutants.coverage_map import CoverageMap, Functions, Mapper, Tracer, ran_at_import
from tests.mutants.packages import MARKERS, ROOT, TESTS
from tests.mutants.report import Outcome
from tests.mutants.sites import Mutation

#: At least so many mutants of each package, or all that it has.
EACH = 30
#: Seconds, while its lines are noted: a test that takes longer is no fast one.
SLOW = 8.0
#: Seconds of tests for one mutant: the fastest first.
BUDGET = 60.0
#: A test of at least so many seconds has to detect a mutant twice: it may wait for real time.
SURE = 0.2
MAPS = ROOT / "build" / "mutants" / "maps"
#: Imported before the first fork: no module of the core, and none of the tests.
LIBRARIES = (
    "aiohttp.web", "asyncpg", "cryptography.x509", "google.protobuf", "grpc", "grpc.aio",
    "hypothesis.stateful", "jinja2", "jwt", "msgspec", "prometheus_client",
    "pydantic", "sqlalchemy.ext.asyncio", "yaml",
)  # fmt: skip


class BadOption(Exception):
    """A variable of the environment is invalid; the text says which."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run. ``count`` None is every mutant."""

    seed: int
    count: int | None
    only: tuple[str, ...]
    tests: tuple[str, ...]
    jobs: int
    fresh: bool


def options(environment: dict[str, str]) -> Options:
    """From MUTANTS_*. Raises BadOption."""
    count = environment.get("MUTANTS_COUNT", "500")
    return Options(
        seed=_number(environment, "MUTANTS_SEED", 1, least=0),
        count=None if count == "all" else _number(environment, "MUTANTS_COUNT", 500, least=1),
        only=_list(environment, "MUTANTS_PACKAGE"),
        tests=_list(environment, "MUTANTS_TESTS") or TESTS,
        jobs=_number(environment, "MUTANTS_JOBS", len(os.sched_getaffinity(0)), least=1),
        fresh=environment.get("MUTANTS_FRESH", "") not in ("", "0"),
    )


def _list(environment: dict[str, str], name: str) -> tuple[str, ...]:
    return tuple(one for one in environment.get(name, "").split(",") if one)


def _number(environment: dict[str, str], name: str, default: int, *, least: int) -> int:
    text = environment.get(name, "") or str(default)
    try:
        value = int(text)
    except ValueError:
        raise BadOption(f"{name}: {text!r} is no whole number") from None
    if value < least:
        raise BadOption(f"{name}: {value} is less than {least}")
    return value


@dataclass(slots=True)
class _Plan:
    """The mutants to try, before any test is imported."""

    drawn: list[Mutation]
    packages: dict[str, str]
    sources: dict[str, str]
    excused: dict[Mutation, equivalent.Equivalent]


def run(asked: Options) -> list[Outcome]:
    """Every outcome, in the order of the files. Raises BadOption and BadList."""
    plan = _plan(asked)
    print(f"{len(plan.drawn)} mutants, seed {asked.seed}", flush=True)
    for name in LIBRARIES:
        __import__(name)
    apart = _Apart.start(plan, asked)
    trial = _Trials(plan, asked, apart)
    tracer = Tracer(ROOT, list(packages.core()))

    def then(items: Sequence[pytest.Item]) -> None:
        trial.at_import = ran_at_import(tracer)
        trial.run(items)

    plugin = pytest_plugin.Collected(then)
    flags = ["-q", "-q", "-s", *pytest_plugin.FLAGS, "-m", MARKERS]
    os.chdir(ROOT)
    tracer.start()
    code = pytest.main([*flags, *asked.tests], plugins=[plugin])
    if code not in (0, 5) or trial.outcomes is None:
        raise BadOption(f"the tests were not collected: exit code {int(code)}")
    return sorted(trial.outcomes, key=lambda one: (one.mutation.path, one.mutation.number))


def _plan(asked: Options) -> _Plan:
    core = packages.core()
    sources = {path: (ROOT / path).read_text() for path in core}
    found = {path: sites.mutations(path, source) for path, source in sources.items()}
    excused = equivalent.excused(equivalent.read(), found, sources)
    chosen = {
        path: [one for one in some if _is_asked(one, core[path], asked.only)]
        for path, some in found.items()
    }
    if not any(chosen.values()):
        raise BadOption(f"MUTANTS_PACKAGE: there is no {' or '.join(asked.only)}")
    per_package: dict[str, list[Mutation]] = defaultdict(list)
    for path, some in chosen.items():
        if some:
            per_package[core[path]] += some
    return _Plan(draw(per_package, asked.seed, asked.count), core, sources, excused)


def _is_asked(mutation: Mutation, package: str, only: Sequence[str]) -> bool:
    """Whether it is of a package, a folder, a file or a line (`file:line`) that was asked for."""
    if not only or package in only or f"{mutation.path}:{mutation.line}" in only:
        return True
    return any(mutation.path.startswith(one) for one in only)


def draw(per_package: dict[str, list[Mutation]], seed: int, count: int | None) -> list[Mutation]:
    """``count`` mutations: each package's share is that of its code, and EACH at least."""
    total = sum(len(some) for some in per_package.values())
    if count is None or count >= total:
        return [one for some in per_package.values() for one in some]
    rng = random.Random(seed)
    drawn: list[Mutation] = []
    for _, some in sorted(per_package.items()):
        share = max(round(count * len(some) / total), min(EACH, count // len(per_package)))
        drawn += rng.sample(some, min(share, len(some)))
    return drawn


class _Apart:
    """A process that has imported the libraries alone: for mutants that need a new import."""

    def __init__(self, pid: int, to: int, back: int) -> None:
        self._pid, self._to, self._back = pid, to, back

    @classmethod
    def start(cls, plan: _Plan, asked: Options) -> "_Apart":
        reads, to = os.pipe()
        back, writes = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(to)
            os.close(back)
            code = 1
            try:
                with os.fdopen(reads) as jobs, os.fdopen(writes, "w") as answers:
                    _be_apart(plan, asked, json.loads(jobs.read() or "[]"), answers)
                code = 0
            finally:
                os._exit(code)
        os.close(reads)
        os.close(writes)
        return cls(pid, to, back)

    def run(self, jobs: list[tuple[int, list[str], float]]) -> Iterator[tuple[int, Any]]:
        """Jobs are place among the drawn, ids of tests, limit in seconds; gives the results."""
        with os.fdopen(self._to, "w") as to:
            json.dump(jobs, to)
        with os.fdopen(self._back) as back:
            for line in back:
                number, verdict = json.loads(line)
                yield number, verdict
        os.waitpid(self._pid, 0)


def _be_apart(plan: _Plan, asked: Options, jobs: list[Any], answers: Any) -> None:
    def work(job: Any, folder: Path) -> trials.Verdict:
        mutation = plan.drawn[job[0]]
        return trials.cold(mutation, plan.sources[mutation.path], job[1], folder)

    for job, verdict in run_each(jobs, work, at_once=asked.jobs, limit=lambda job: float(job[2])):
        print(json.dumps([job[0], verdict]), file=answers, flush=True)


@dataclass(slots=True)
class _Trials:
    """Runs inside of pytest, with every test collected."""

    plan: _Plan
    asked: Options
    apart: _Apart
    outcomes: list[Outcome] | None = None
    at_import: set[str] = field(default_factory=set)
    _items: dict[str, pytest.Item] = field(default_factory=dict)
    _fitting: list[list[str]] = field(default_factory=list)
    _map: CoverageMap = field(default_factory=CoverageMap)
    _detected_by: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _functions: Functions = field(default_factory=lambda: Functions(ROOT))

    def run(self, items: Sequence[pytest.Item]) -> None:
        """Try every mutant; ``outcomes`` has the results."""
        self._items = {item.nodeid: item for item in items}
        index = trials.CodeIndex()
        # Collect now and keep the rest: a fork then copies little of it.
        gc.collect()
        gc.freeze()
        self._map = map_all(items, self.asked)
        self._fitting = [self._map.fitting(one, self._functions) for one in self.plan.drawn]
        self.outcomes = []
        anew = []
        for number, verdict in self._warm(list(range(len(self.plan.drawn))), index):
            if self._needs_import(number, verdict):
                anew.append(number)
            else:
                self._note(number, verdict)
        jobs = [(one, self._tests(one), self._limit(one)) for one in anew]
        for number, verdict in self.apart.run(jobs):
            self._note(number, verdict or _HUNG)

    def _warm(
        self, numbers: list[int], index: trials.CodeIndex
    ) -> Iterator[tuple[int, trials.Verdict]]:
        """Try some of the drawn, and once more those that only a slow test has detected."""
        unsure: list[tuple[int, list[str]]] = []

        def work(job: tuple[int, list[str]], folder: Path) -> trials.Verdict:
            mutation = self.plan.drawn[job[0]]
            tests = [(self._items[test], self._map.seconds[test]) for test in job[1]]
            return trials.warm(mutation, self.plan.sources[mutation.path], index, tests, folder)

        def limit(job: tuple[int, list[str]]) -> float:
            return self._limit(job[0])

        first = ((number, self._tests(number)) for number in numbers if self._runs_warm(number))
        for (number, _), said in run_each(first, work, at_once=self.asked.jobs, limit=limit):
            verdict = said or _HUNG
            test = verdict.get("test")
            if self._map.seconds.get(test or "", 0.0) >= SURE:
                others = [one for one in self._tests(number) if one != test]
                unsure.append((number, [str(test), *others]))
            else:
                yield number, verdict
        for (number, _), said in run_each(unsure, work, at_once=self.asked.jobs, limit=limit):
            yield number, said or _HUNG
        for number in numbers:
            if not self._runs_warm(number):
                yield number, {"test": None} if not self._fitting[number] else {"cold": True}

    def _runs_warm(self, number: int) -> bool:
        return bool(self._fitting[number]) and bool(self.plan.drawn[number].function)

    def _needs_import(self, number: int, verdict: trials.Verdict) -> bool:
        """Whether it could not be tried, or the changed code ran before it was changed."""
        if verdict.get("cold"):
            return True
        mutation = self.plan.drawn[number]
        key, _ = self._functions.key(mutation.path, mutation.function)
        return verdict["test"] is None and key in self.at_import and bool(self._fitting[number])

    def _tests(self, number: int) -> list[str]:
        """The fitting tests: first those that detected mutants of this function, then the fast."""
        mutation = self.plan.drawn[number]
        here = self._detected_by[f"{mutation.path}::{mutation.function}"]
        seconds = self._map.seconds
        ordered = sorted(self._fitting[number], key=lambda test: (-here[test], seconds[test]))
        chosen: list[str] = []
        spent = 0.0
        for test in ordered:
            spent += seconds[test]
            if chosen and spent > BUDGET:
                break
            chosen.append(test)
        return chosen

    def _limit(self, number: int) -> float:
        """Seconds for the whole trial, its processes' start included."""
        return 60 + sum(trials.TIMES * self._map.seconds[test] for test in self._tests(number))

    def _note(self, number: int, verdict: trials.Verdict) -> None:
        mutation = self.plan.drawn[number]
        test = verdict["test"]
        if test is not None:
            self._detected_by[f"{mutation.path}::{mutation.function}"][test] += 1
        excuse = self.plan.excused.get(mutation)
        outcome = Outcome(
            mutation,
            self.plan.packages[mutation.path],
            test,
            hung=bool(verdict.get("hung")),
            fitting=len(self._fitting[number]),
            reason=excuse.reason if excuse else "",
        )
        assert self.outcomes is not None
        self.outcomes.append(outcome)
        if not outcome.detected and not outcome.equivalent:
            done = f"{len(self.outcomes)}/{len(self.plan.drawn)}"
            print(f"{done} survived: {mutation.path}:{mutation.line} {mutation.change}", flush=True)


_HUNG: trials.Verdict = {"test": "none: the trial hung", "hung": True}


def map_all(items: Sequence[pytest.Item], asked: Options) -> CoverageMap:
    """Which tests run what: kept for each file of tests until that file changes."""
    by_file: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        by_file[item.nodeid.split("::")[0]].append(item)
    stamps = {file: hashlib.sha256((ROOT / file).read_bytes()).hexdigest() for file in by_file}
    kept = {file: MAPS / (file.replace("/", ".") + ".json") for file in by_file}
    known = {file: CoverageMap.load(kept[file], stamps[file]) for file in by_file}
    missing = [file for file in by_file if asked.fresh or known[file] is None]
    if missing:
        print(f"finding which tests run what: {len(missing)} files of tests", flush=True)

    def work(file: str, folder: Path) -> list[str]:
        made, left_out = _map_one(by_file[file], folder)
        made.save(kept[file], stamps[file])
        return left_out

    for file, left_out in run_each(missing, work, at_once=asked.jobs, limit=lambda _: 900.0):
        if not isinstance(left_out, list):
            print(f"  left out: {file}: {left_out or 'it hung'}", flush=True)
        else:
            for line in left_out:
                print(f"  left out: {line}", flush=True)
        known[file] = CoverageMap.load(kept[file], stamps[file])
    merged = CoverageMap()
    for file in by_file:
        merged.add(known[file] or CoverageMap())
    return merged


def _queued() -> float:
    """Seconds that this thread has waited for a processor: a busy machine makes no test slow."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _map_one(items: list[pytest.Item], folder: Path) -> tuple[CoverageMap, list[str]]:
    """The map of one file of tests, and the tests left out of it: those that fail or are slow."""
    mapper = Mapper(ROOT, list(packages.core()))
    left_out = []
    pytest_plugin.own_folder(items[0], folder)
    for at, item in enumerate(items):
        mapper.start()
        began, queued = time.monotonic(), _queued()
        try:
            after = items[at + 1] if at + 1 < len(items) else None
            passed = pytest_plugin.run_test(item, after, 10 * SLOW)
        except pytest_plugin.Hung:
            passed = False
        seconds = max(0.0, time.monotonic() - began - (_queued() - queued))
        mapper.ran(item.nodeid, seconds, passed=passed and seconds <= SLOW)
        if not passed or seconds > SLOW:
            why = f"{seconds:.1f} s" if passed else "fails"
            left_out.append(f"{item.nodeid}: {why}")
    return mapper.map, left_out
