"""The demo: `make demo` on this machine alone, `make demo-cluster` on a real API server."""
