"""Stores of bytes: local files, memory, archives, HTTP and object stores."""
