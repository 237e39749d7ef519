"""Which nodes reach which, and which of them a failure is blamed on. Pure."""
