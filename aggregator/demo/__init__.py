"""`sickbay demo`: this machine's own agent, simulated nodes, and a story of faults.

It imports no other part of the aggregator: it starts the installed programs, and uses their API.
"""
