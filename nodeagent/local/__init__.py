"""What the agent tells and takes on its own node, over a unix socket."""
