"""Verification of stored data: a census of objects, comparisons and digests of values."""
