"""Who reaches whom, and whom that is blamed on. Pure."""
