"""What each reconciler does next for a node: pure functions over a small view each."""
