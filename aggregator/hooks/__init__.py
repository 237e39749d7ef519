"""A site's own step before or after a drain: a command or an HTTP endpoint."""
