"""How far one fault goes through the controller: `make trace` prints the same, file by file."""

from tests.bench.trace import count

#: What the tree has now, calls and functions rounded up. A change that lowers a count lowers its
#: limit.
MOST = {"trace_files": 35, "trace_functions": 310, "trace_calls": 465, "trace_moves": 250}


def test_one_fault_passes_no_more_files_and_calls_than_before() -> None:
    found = count()
    figures = found.figures()
    assert any(name.endswith("quarantine/actions/node_actions.py") for name in found.files)
    assert figures.keys() == MOST.keys()
    grown = {name: value for name, value in figures.items() if value > MOST[name]}
    assert not grown, f"one fault passes more than {MOST}: put the feature next to the core"
