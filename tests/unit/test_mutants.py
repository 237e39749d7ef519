"""The mutator: its changes, the code that it leaves alone, its draws and its reports."""

import ast
import gc
from pathlib import Path

import pytest

from tests.mutants import equivalent, packages, run, trials
from tests.mutants.children import run_each
from tests.mutants.equivalent import BadList, Equivalent
from tests.mutants.report import Outcome, figures, table, wrongly_excused
from tests.mutants.sites import Mutation, mutated, mutations

pytestmark = pytest.mark.slow

GUARD = """
def guard(record, now, *, strict=True):
    "A text."
    log.warning("not %s", record and now)
    assert record is not None, now + 1
    if record.stopped and not record.old(now) or now - record.at > 5:
        raise Stopped(f"for {now + 1} s")
    record.count += 1
    record.seen = [one for one in record.all if one.at < now]
    try:
        return min(record.seen)
    except ValueError:
        return None
"""


def changes(source: str) -> set[str]:
    return {one.change for one in mutations("m.py", source)}


def test_each_kind_of_change_is_made() -> None:
    assert changes(GUARD) >= {
        "constant: True -> False",
        "and-or: record.stopped and (not record.old(now)) -> record.stopped or not record.old(now)",
        "drop-operand: record.stopped and (not record.old(now)) -> record.stopped",
        "drop-not: not record.old(now) -> record.old(now)",
        "compare: now - record.at > 5 -> now - record.at >= 5",
        "compare: now - record.at > 5 -> now - record.at <= 5",
        "arithmetic: now - record.at -> now + record.at",
        "constant: 5 -> 6",
        "constant: 5 -> 4",
        "remove-raise: raise Stopped(f'for {now + 1} s') -> pass",
        "remove-statement: record.count += 1 -> pass",
        "arithmetic: record.count += 1 -> record.count -= 1",
        "drop-filter: one.at < now -> ",
        "return-none: return min(record.seen) -> return None",
        "call: min(record.seen) -> max(record.seen)",
        "raise-on: except ValueError: return None -> raise",
    }


def test_what_only_people_read_is_left_alone() -> None:
    lines = {one.line for one in mutations("m.py", GUARD)}
    assert not lines & {3, 4, 5}, "the docstring, the log call, the assertion"
    shown = [one.before for one in mutations("m.py", GUARD) if one.operator != "remove-raise"]
    assert not any("now + 1" in text for text in shown), "what a message is made of"
    assert changes("def f(x):\n    if x > 1:\n        log.info('x')\n") == set()
    assert changes("def f(x):\n    if x > 1:\n        _LOG.info('x')\n") == set()
    either = "def f(x):\n    if x > 1:\n        log.info('x')\n    elif x:\n        "
    assert changes(f"{either}log.info('y')\n") == set()
    assert "remove-statement: x.y = 1 -> pass" in changes(f"{either}x.y = 1\n")
    assert changes("def f(x, y):\n    del x, y\n") == set(), "arguments that are not used"
    assert changes("def f(x):\n    del x[:9]\n") >= {"remove-statement: del x[:9] -> pass"}
    constants = "LIMIT = 5\nclass A:\n    wait: float = 2.0\n"
    assert changes(constants + "    def __repr__(self): return 1\n") == set()


def test_the_strictness_of_a_zip_is_left_alone() -> None:
    assert changes("def f(a, b):\n    return [*zip(a, b, strict=True)]\n") == {
        "return-none: return [*zip(a, b, strict=True)] -> return None"
    }
    assert changes("def f(a):\n    a(wait=True)\n") >= {"constant: True -> False"}


def test_each_mutation_is_another_program() -> None:
    texts = [ast.unparse(mutated(GUARD, one.number)) for one in mutations("m.py", GUARD)]
    assert len(texts) > 20
    assert len({*texts, ast.unparse(ast.parse(GUARD))}) == len(texts) + 1
    for text in texts:
        compile(text, "m.py", "exec")


def test_a_bare_return_is_removed_where_something_follows_it() -> None:
    source = """
def f(x):
    try:
        x.read()
    except KeyError:
        return
    except OSError:
        if x:
            return
        x.close()
    for one in x:
        if one:
            return
    with x:
        if x.one:
            return
"""
    assert [one.line for one in mutations("m.py", source) if one.operator == "remove-return"] == [
        6,
        9,
        13,
    ]


def test_a_function_knows_its_outermost_name() -> None:
    source = "class A:\n    def f(self):\n        def g(x):\n            return x + 1\n"
    assert {one.function for one in mutations("m.py", source)} == {"A.f"}


def test_a_seed_draws_the_same_and_another_seed_others() -> None:
    found = mutations("m.py", "def f(a, b):\n" + "    a += b\n" * 200)
    packs = {"one": found[:300], "two": found[300:]}
    drawn = run.draw(packs, 1, 80)
    assert drawn == run.draw(packs, 1, 80)
    assert drawn != run.draw(packs, 2, 80)
    assert len([one for one in drawn if one in packs["two"]]) >= 20
    assert len(run.draw(packs, 1, None)) == len(found)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("MUTANTS_SEED", "x", "MUTANTS_SEED: 'x' is no whole number"),
        ("MUTANTS_COUNT", "0", "MUTANTS_COUNT: 0 is less than 1"),
        ("MUTANTS_JOBS", "-1", "MUTANTS_JOBS: -1 is less than 1"),
    ],
)
def test_a_bad_option_is_named(name: str, value: str, text: str) -> None:
    with pytest.raises(run.BadOption, match=text):
        run.options({name: value})


def test_every_package_has_files_and_each_file_one_package() -> None:
    core = packages.core()
    assert set(core.values()) == set(packages.PACKAGES)
    assert core["aggregator/quarantine/decide/plans/release.py"] == "decide"
    assert core["aggregator/quarantine/actions/cordon.py"] == "quarantine"


@pytest.mark.slow
def test_every_equivalent_mutant_is_one_that_the_code_allows() -> None:
    sources = {path: (packages.ROOT / path).read_text() for path in packages.core()}
    found = {path: mutations(path, source) for path, source in sources.items()}
    entries = equivalent.read()
    assert set(equivalent.excused(entries, found, sources).values()) == set(entries)


def test_an_entry_that_names_no_mutant_is_an_error(tmp_path: Path) -> None:
    entry = Equivalent("m.py", "return min(record.seen)", "call: min(a) -> max(a)", "no reason")
    with pytest.raises(BadList, match=r"m\.py: call: min\(a\)"):
        equivalent.excused([entry], {"m.py": mutations("m.py", GUARD)}, {"m.py": GUARD})
    path = tmp_path / "list.toml"
    path.write_text('[[equivalent]]\nfile = "m.py"\nline = "x"\nchange = "y"\nreason = " "\n')
    with pytest.raises(BadList, match="has no reason"):
        equivalent.read(path)


def outcomes() -> list[Outcome]:
    some: list[Mutation] = mutations("m.py", GUARD)
    return [
        Outcome(some[0], "a", "test_x"),
        Outcome(some[1], "a", None),
        Outcome(some[2], "b", None, reason="the same"),
        Outcome(some[3], "b", "test_y", hung=True),
    ]


def test_equivalent_mutants_are_counted_and_are_no_part_of_the_percentage() -> None:
    assert figures(outcomes(), seed=3, seconds=1.25) == {
        "mutants": 4,
        "detected": 2,
        "detected_percent": 66.7,
        "survived": 1,
        "equivalent": 1,
        "hung": 1,
        "seed": 3,
        "seconds": 1.2,
        "a_percent": 50.0,
        "b_percent": 100.0,
    }
    assert table(outcomes()).splitlines()[-1].split() == ["all", "4", "2", "1", "1", "66.7"]
    assert wrongly_excused(outcomes()) == []
    wrong = [Outcome(outcomes()[2].mutation, "b", "test_z", reason="the same")]
    assert "detected by test_z" in wrongly_excused(wrong)[0]


@pytest.mark.slow
def test_a_trial_that_hangs_or_dies_ends_without_harm_to_the_others() -> None:
    def work(job: str, folder: Path) -> object:
        import os
        import time

        (folder / "left").write_text("behind")
        if job == "hangs":
            time.sleep(60)
        if job == "dies":
            os._exit(3)
        return {"job": job, "folder": str(folder)}

    found = dict(run_each(["hangs", "dies", "ends"], work, at_once=3, limit=lambda _: 2.0))
    assert found["hangs"] is None
    assert found["dies"] is None
    assert found["ends"]["job"] == "ends"
    assert not Path(found["ends"]["folder"]).exists()


def test_functions_are_found_although_pytest_has_frozen_what_it_collected() -> None:
    found = trials.CodeIndex()
    gc.freeze()
    assert trials._name(mutations.__code__) in found._functions
