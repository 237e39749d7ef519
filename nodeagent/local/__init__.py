"""The agent's interface on its own node, over a unix socket: answers and commands."""
