"""Files that people write: checks that they are files, YAML with its lines, kinds of value."""
