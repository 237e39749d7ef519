"""What happened, kept in a database. Losing it loses history, never a judgement."""
