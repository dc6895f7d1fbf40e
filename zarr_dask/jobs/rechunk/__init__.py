"""Laying arrays out anew within a bound of memory: planner, plans, what carries them out."""
