"""Which replicas are there, and whose node is whose."""
