"""Which nodes make a group's test fail: a search in rounds of tests of disjoint groups."""
