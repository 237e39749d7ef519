"""Features next to the drain that know the work on a node, and let pods wait."""
