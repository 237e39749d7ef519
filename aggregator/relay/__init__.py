"""Carries the agents' messages from a gateway, where their connections end, to the controller."""
