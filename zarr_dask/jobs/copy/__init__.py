"""Copying arrays and hierarchies, without decoding stored objects if possible."""
