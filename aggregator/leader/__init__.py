"""Which replica is the controller: the holder of one Lease."""
