"""Benchmarks: one run prints the floor, this package and its peers, with ratios.

The floor is what nobody can beat with the same codec: a plain loop that reads a stored object,
decodes its chunks and puts them in their place, on the same number of threads.
"""
