"""What maintainers run to build and publish a version. No wheel has it."""
