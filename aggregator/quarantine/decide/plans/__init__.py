"""The next step of each reconciler for a node: pure functions over a small view each."""
