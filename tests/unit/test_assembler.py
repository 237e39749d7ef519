"""The core's parts are made by the types that their constructors name."""

import pytest

from aggregator.composition.assembler import Assembler
from aggregator.quarantine.decide.agentless import AgentlessNodes
from aggregator.quarantine.reconcile.own_evidence import OwnEvidence
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodeRegistry


class Part:
    def __init__(self, fleet: FleetState, agentless: AgentlessNodes | None = None) -> None:
        self.fleet, self.agentless = fleet, agentless


def test_a_part_gets_those_that_it_names_and_each_is_made_once() -> None:
    fleet = FleetState()
    assembler = Assembler({FleetState: fleet, AgentlessNodes | None: None})
    part = assembler.make(Part)
    assert part.fleet is fleet
    assert assembler.make(Part) is part


def test_an_argument_by_name_comes_before_a_known_part() -> None:
    known, given = FleetState(), FleetState()
    part = Assembler({FleetState: known}).make(Part, fleet=given, agentless=None)
    assert part.fleet is given


def test_no_argument_is_left_to_its_default() -> None:
    with pytest.raises(TypeError, match=r"Part needs agentless: .*AgentlessNodes"):
        Assembler({FleetState: FleetState()}).make(Part)


@pytest.mark.parametrize("kind", [NodeRegistry, OwnEvidence])
def test_an_argument_that_no_part_is_known_for_is_named(kind: type) -> None:
    with pytest.raises(TypeError, match="NodeRegistry needs pool_label"):
        Assembler({FleetState: FleetState()}).make(kind)
