"""One array in a store: reading, writing, views, creating and resizing."""
