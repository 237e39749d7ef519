"""The history's tables, step by step. `aggregator.history.migrate` runs the missing steps.

A step is a file in versions/, named after its revision: MAJOR.MINOR. A program works with every
database of its own major, so a change that an older program can't work with must raise the major;
an addition (a table, an index, a column with a default) raises the minor.
"""
