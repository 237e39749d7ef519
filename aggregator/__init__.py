"""The aggregator: evaluates what agents report; taints, drains and releases nodes."""
