"""The agent's configuration: its settings, those of the checks, and a file that changes."""
