"""The measure of allocated memory counts objects of every size."""

import pytest

from tests.support.allocated import allocated_bytes

MIB = 2**20


@pytest.mark.parametrize("size", [100, 400, 1_000, 100_000, 4 * MIB])
def test_objects_count_while_they_are_there(size: int) -> None:
    count = 4 * MIB // size
    before = allocated_bytes()
    kept = [bytes(size) for _ in range(count)]
    during = allocated_bytes()
    kept.clear()
    assert size * count <= during - before < 1.5 * size * count + MIB
    assert abs(allocated_bytes() - before) < MIB
