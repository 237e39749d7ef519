"""The interfaces for people and tools: the status page, the JSON API, events, metrics. Read
only.
"""
