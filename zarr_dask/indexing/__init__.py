"""Indices as values: basic indexing, index transforms, and the chunks that they meet."""
