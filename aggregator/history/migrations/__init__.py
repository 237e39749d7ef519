"""The history's tables, step by step. `aggregator.history.migrating` runs what is missing.

A step is a file in versions/, named after its revision: MAJOR.MINOR. A program works with every
database of its own major, so what an older program can't live with must count up the major; what
is added (a table, an index, a column with a default) counts up the minor.
"""
