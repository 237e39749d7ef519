"""Jobs: which work a fault hits, and what it costs."""
