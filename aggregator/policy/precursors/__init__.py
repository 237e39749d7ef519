"""Precursors: error counters that rise on one part while they stay at zero on nearly all others."""
