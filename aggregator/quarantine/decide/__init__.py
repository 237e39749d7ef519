"""What is decided about a node and about many, each decision a module. Pure."""
