"""The transitions of the fleet, kept in a database. Its loss costs no evaluation."""
