"""A cluster without Kubernetes behind the `Cluster` protocol: SQLite, and commands of the site."""
