"""What ``sickbay-agent`` shows people: one look, findings, tables."""
