"""The transitions of the fleet, kept in a database. Losing it loses history, never a judgement."""
