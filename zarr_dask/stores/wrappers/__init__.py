"""Options of stores as wrappers around them."""
