"""The core's parts are made by the types that their constructors name."""

import pytest

from aggregator.composition.assembler import Assembler
from aggregator.quarantine.decide.agentless import AgentlessNodes
from aggregator.quarantine.reconcile.own_evidence import OwnEvidence
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodePools, NodeRegistry


def test_a_part_gets_those_that_it_names_and_each_is_made_once() -> None:
    fleet = FleetState()
    assembler = Assembler({FleetState: fleet})
    registry = assembler.make(NodeRegistry, pool_label="pool")
    assert registry.fleet is fleet
    assert assembler.make(NodeRegistry) is registry


def test_a_given_argument_comes_before_a_known_part_and_a_known_part_before_a_default() -> None:
    known, given = AgentlessNodes(["a"]), AgentlessNodes(["b"])
    for more, expected in (({}, known), ({"agentless": given}, given)):
        assembler = Assembler({FleetState: FleetState(), AgentlessNodes: known})
        assert assembler.make(NodeRegistry, pool_label="", **more)._agentless is expected


@pytest.mark.parametrize("kind", [NodePools, OwnEvidence])
def test_an_argument_that_no_part_is_known_for_is_named(kind: type) -> None:
    with pytest.raises(TypeError, match="NodeRegistry needs pool_label"):
        Assembler({FleetState: FleetState()}).make(kind)
