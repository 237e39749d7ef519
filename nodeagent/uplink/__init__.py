"""The stream to the aggregator: how it is reached, what is said in it, where to go when it ends."""
