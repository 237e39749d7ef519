"""One file for each receiver of alerts: its part of the configuration, and its rendering."""
