"""Migrating hierarchies to another format without decoding a chunk."""
