"""The agent: gathers evidence on its node and judges nothing."""
