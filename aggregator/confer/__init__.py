"""The replicas' gRPC with each other: how `quarantine.conferring` is carried, and who may speak."""
