"""What people must hear of, through webhooks, from an outbox that outlives the process."""
