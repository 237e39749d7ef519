"""Active tests: profiles of programs that put load on the node, and what their output means."""
