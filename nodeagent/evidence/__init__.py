"""All that the agent knows, kept in memory, in `/run` and, when it likes, on disk."""
