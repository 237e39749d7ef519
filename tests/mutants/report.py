"""Reports the trials' outcomes: a table per package, the figures, the survivors."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.sites import Mutation


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one mutant.

    ``test`` detected it, or None; ``reason`` why it is no mutant at all.
    """

    mutation: Mutation
    package: str
    test: str | None
    hung: bool = False
    fitting: int = 0
    reason: str = ""

    @property
    def detected(self) -> bool:
        return self.test is not None

    @property
    def equivalent(self) -> bool:
        return bool(self.reason) and not self.detected


def percent(outcomes: Iterable[Outcome]) -> float:
    """Detected mutants, per cent of those that are not equivalent; 100 if all are."""
    real = [one for one in outcomes if not one.equivalent]
    return round(100 * sum(one.detected for one in real) / len(real), 1) if real else 100.0


def figures(outcomes: list[Outcome], *, seed: int, seconds: float) -> dict[str, float]:
    """One flat object: the content of build/bench/mutants.json."""
    detected = sum(one.detected for one in outcomes)
    equivalent = sum(one.equivalent for one in outcomes)
    return {
        "mutants": len(outcomes),
        "detected": detected,
        "detected_percent": percent(outcomes),
        "survived": len(outcomes) - detected - equivalent,
        "equivalent": equivalent,
        "hung": sum(one.hung for one in outcomes),
        "seed": seed,
        "seconds": round(seconds, 1),
        **{f"{name}_percent": percent(some) for name, some in by_package(outcomes).items()},
    }


def by_package(outcomes: Iterable[Outcome]) -> Mapping[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for one in outcomes:
        found.setdefault(one.package, []).append(one)
    return dict(sorted(found.items()))


def table(outcomes: list[Outcome]) -> str:
    head = ("package", "mutants", "detected", "survived", "equivalent", "percent")
    rows: list[tuple[str, ...]] = [head]
    for name, some in [*by_package(outcomes).items(), ("all", outcomes)]:
        detected, equivalent = sum(o.detected for o in some), sum(o.equivalent for o in some)
        counts = (len(some), detected, len(some) - detected - equivalent, equivalent)
        rows.append((name, *(str(one) for one in counts), f"{percent(some):.1f}"))
    return "\n".join(f"{row[0]:12}" + "".join(f"{one:>12}" for one in row[1:]) for row in rows)


def survivors(outcomes: Iterable[Outcome]) -> str:
    """A line for each mutant that no test detected, by place."""
    lines = [
        f"{one.mutation.path}:{one.mutation.line} {one.mutation.change}"
        f" ({one.fitting} tests run it)"
        for one in sorted(outcomes, key=lambda one: (one.mutation.path, one.mutation.number))
        if not one.detected and not one.equivalent
    ]
    return "\n".join(lines)


def wrongly_excused(outcomes: Iterable[Outcome]) -> list[str]:
    """Entries of the list of equivalents that a test does detect."""
    return [
        f"{one.mutation.path}:{one.mutation.line} {one.mutation.change}: detected by {one.test}"
        for one in outcomes
        if one.reason and one.detected
    ]


def save(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")
