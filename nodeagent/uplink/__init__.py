"""The stream to the aggregator: how to connect, its messages, where to reconnect when it ends."""
