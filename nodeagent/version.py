"""The agent's version. A constant: to ask the installed package costs the agent MiBs of imports."""

VERSION = "0.1.0"
