"""Compressors."""
