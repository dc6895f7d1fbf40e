"""Codecs of strings, bytes and objects."""
