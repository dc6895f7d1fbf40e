"""Counting what a hierarchy holds."""
