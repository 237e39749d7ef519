"""The decisions about one node and about many, each decision a module. Pure."""
