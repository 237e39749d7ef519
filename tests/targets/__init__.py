"""Every target of the Makefile, in a small form."""
