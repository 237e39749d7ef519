"""The order of writes by which an operation begins, against a release: each interleaving of them.

An operation and its Quarantine are two objects, and no write covers both. So the one that begins
creates its object first and then writes the Quarantine at the version that it read; a release reads
the Quarantine, then the operations, and then writes at that version. One of the two writes fails.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass
class World:
    """A Quarantine with its version, and its operation: its phase and uid, if it is there."""

    version: int = 1
    releasing: bool = False
    operation: tuple[str, int] | None = None
    made: int = 0
    #: Orders and the release, as they happened.
    happened: list[str] = field(default_factory=list)


Process = Callable[[World], Iterator[None]]


def begins(world: World) -> Iterator[None]:
    """One step of a node's ladder; each yield is a place where others go on, or where it dies."""
    version, releasing = world.version, world.releasing
    yield
    if releasing:
        return
    if world.operation is None:
        world.made += 1
        world.operation = "Pending", world.made
    mine = world.operation
    if mine[0] != "Pending":
        return  # another process has gone on with it: its version is another one
    yield
    if world.version != version:  # the write of the Quarantine fails: nothing was sent
        return
    world.version += 1
    yield
    if world.operation != mine:  # the write of its phase has a fence of its own
        return
    world.operation = "Ordering", mine[1]
    yield
    world.happened.append("ordered")
    world.operation = "Ordered", mine[1]


def recovers(world: World) -> Iterator[None]:
    """A release by recovery: it removes those about to begin, and waits for those that may act."""
    version = world.version
    yield
    found = world.operation
    yield
    if found is not None:
        if found[0] != "Pending" or world.operation != found:
            return  # its removal has a fence of its own
        world.operation = None
        yield
    if world.version == version:
        world.version, world.releasing = world.version + 1, True
        world.happened.append("released")


def without_the_second_write(world: World) -> Iterator[None]:
    """`begins` as it must not be: it trusts what it read before."""
    releasing = world.releasing
    yield
    if releasing:
        return
    world.operation = "Ordering", 1
    yield
    world.happened.append("ordered")


def test_no_interleaving_orders_on_a_node_that_recovers() -> None:
    outcomes = {tuple(one.happened) for one in interleaved(begins, recovers)}
    assert outcomes == {("ordered",), ("released",), ()}
    # Two processes that are both the controller, in their opinion.
    for one in interleaved(begins, begins, recovers):
        assert one.happened in (["ordered"], ["released"], [])


def test_without_its_second_write_an_order_meets_a_released_node() -> None:
    found = {tuple(one.happened) for one in interleaved(without_the_second_write, recovers)}
    assert ("released", "ordered") in found


def interleaved(*processes: Process) -> Iterator[World]:
    """The end of each interleaving, and of each death in it."""
    yield from _go_on((), len(processes), processes)


def _go_on(path: tuple[int, ...], count: int, processes: tuple[Process, ...]) -> Iterator[World]:
    world, alive = _replay(path, processes)
    yield world  # all die here
    for number in range(count):
        if number in alive:
            yield from _go_on((*path, number), count, processes)


def _replay(path: tuple[int, ...], processes: tuple[Process, ...]) -> tuple[World, set[int]]:
    world = World()
    running = dict(enumerate(process(world) for process in processes))
    for number in path:
        try:
            next(running[number])
        except StopIteration:
            del running[number]
    return world, set(running)
