"""The loop of the tests whose clock jumps: what it hides of a test, and of the tasks it leaves."""

import asyncio
import inspect

import pytest

from tests.support.virtual_time import VirtualTimeLoop, on, run


@on(VirtualTimeLoop.time)
@pytest.mark.slow
async def marked(at: float) -> None:
    """Its words."""
    assert at


def test_a_test_that_is_given_what_is_made_keeps_its_marks_and_name() -> None:
    assert [mark.name for mark in vars(marked)["pytestmark"]] == ["slow"]
    assert (marked.__name__, marked.__doc__) == ("marked", "Its words.")
    assert not inspect.signature(marked).parameters
    marked()


async def refuses() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def leaves(*, fails: bool) -> None:
    task = asyncio.create_task(refuses(), name="stubborn")
    await asyncio.sleep(0)
    assert not fails, "its own"
    assert not task.done()


@pytest.mark.parametrize(("fails", "why"), [(False, "stubborn"), (True, "its own")])
@pytest.mark.filterwarnings("ignore")  # the loop is closed before the task ends
def test_a_task_that_refuses_to_end_is_a_failure_after_that_of_the_test(
    why: str, *, fails: bool
) -> None:
    with pytest.raises(AssertionError, match=why):
        run(leaves(fails=fails))
