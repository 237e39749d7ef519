"""Simulated nodes: many agents in one process, for demos, tests and benchmarks.

What stands between the evidence and the aggregator is the agent's own: the parser of kernel lines,
latch, uplink, stream, gRPC. What is played is the machine: its parts and what happens to them.
docs/simulate.md is for people.
"""
