"""Helpers that know nothing of arrays: arguments, warnings, text, buffers and threads."""
