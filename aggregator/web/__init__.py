"""What people and their tools see: the status page, the JSON API, events, metrics. Read only."""
