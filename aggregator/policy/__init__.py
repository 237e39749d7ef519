"""The meaning of evidence and the action that it asks for: catalogue, rules, incidents. Pure."""
