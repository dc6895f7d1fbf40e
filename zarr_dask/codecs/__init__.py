"""Codecs: the steps between a chunk and the bytes that are stored."""
