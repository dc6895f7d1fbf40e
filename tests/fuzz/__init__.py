"""Hostile bytes and documents for every decoder; see `tests/test_fuzz.py`."""
