"""Simulated nodes: many agents in one process, for demos, tests and benchmarks.

The code between the evidence and the aggregator is the agent's own: the parser of kernel lines,
latch, uplink, stream, gRPC. Only the machine is simulated: its parts and their events.
docs/simulate.md is for people.
"""
