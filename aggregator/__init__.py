"""The aggregator: judges what agents report; taints, drains and releases nodes."""
