"""The replicas' gRPC with each other: the transport of `quarantine.coordination`, and its
authentication.
"""
