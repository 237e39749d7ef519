"""Access control of page, API and metrics: the identity behind a request, and its rights."""
