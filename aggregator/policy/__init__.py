"""What evidence means and what is to be done about it: catalogue, rules, incidents. Pure."""
