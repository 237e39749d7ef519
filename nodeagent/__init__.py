"""The agent: gathers evidence on its node and evaluates nothing."""
