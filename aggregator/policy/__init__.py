"""The meaning of evidence and the action that it calls for: catalogue, rules, incidents. Pure."""
