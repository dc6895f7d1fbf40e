"""Copying arrays and hierarchies, with their objects as they are where that is the same."""
