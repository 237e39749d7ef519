"""Which replicas are there, and which nodes each owns."""
