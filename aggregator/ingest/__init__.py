"""The agents' entrance: their identities, their streams, and the acknowledgement of evidence."""
