"""Formats: metadata documents and key layouts; only this package depends on versions."""
