"""Outliers: parts whose measurements deviate for long from those of the same parts elsewhere."""
