"""The month of jobs (make bench-jobs) in short: fewer nodes, one seed."""

from tests.bench.jobs import run


async def test_the_reported_hours_are_near_the_true_ones_and_no_stop_is_without_its_job() -> None:
    found = await run(nodes=400, days=30.0, seeds=1)
    assert found["stops"] > 40
    assert found["jobs_unattributed"] == 0
    assert found["hours_error_percent"] <= 10  # a smaller fleet: jobs that state nothing weigh more
    assert found["reads_per_fault"] <= 4
