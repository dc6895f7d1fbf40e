"""Groups and nodes: finding, listing, checking and changing them.

===============  ============================================================
nodes for users  `group`, `open_node`, `create_node`, `values`, `consolidate`
finding them     `locate`, `walk`, `absent_node`, `growing`
changing them    `edit`, `exclusive`, `key_swap`, `zip_target`
===============  ============================================================
"""
