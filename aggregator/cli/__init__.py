"""The command `sickbay`: the page's content in a terminal, and a person's actions.

Reading uses the aggregator's API. Acting writes to the cluster itself, with the person's own
rights, so that it works while every aggregator is down.
"""
