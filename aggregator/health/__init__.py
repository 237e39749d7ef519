"""One node's evidence, folded as its agent tells it. Pure."""
