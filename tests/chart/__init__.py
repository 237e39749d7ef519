"""The Helm chart: its templates from deploy/kubernetes, its renderings, and their checks."""
