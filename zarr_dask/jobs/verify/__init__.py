"""Finding out what is stored: a census of objects, comparisons and digests of values."""
