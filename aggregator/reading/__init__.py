"""What people write, read: files that are files, YAML with its lines, kinds of value."""
