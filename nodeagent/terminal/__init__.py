"""The output of ``sickbay-agent`` for people: one look, findings, tables."""
