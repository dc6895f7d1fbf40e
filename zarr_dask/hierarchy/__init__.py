"""Groups and nodes: finding, listing, checking and changing them."""
