"""What people write, read: files that are files, TOML with its lines, kinds of value."""
