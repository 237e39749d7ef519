"""Kubernetes behind the `Cluster` protocol: the only place that knows its API."""
