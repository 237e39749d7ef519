"""One node's evidence, built up from its agent's messages. Pure."""
