"""The part of docs/reference that is made from code: `make docs-reference`.

Only lists that no hand-written page has: schemas of both configuration files, the options of every
command, the shipped rules, the fields of the API's answers and of the Quarantine.
"""
