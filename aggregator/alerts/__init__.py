"""Alerts that people must receive, through webhooks, from an outbox that outlives the process."""
