"""A site's own step around a drain: a command or an HTTP endpoint."""
