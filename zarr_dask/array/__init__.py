"""One array in a store: reading, writing, views, creating and resizing.

=========  ===================================================================
for users  `array`, `attributes`, `view`, `common_names`
reading    `reader`, `source`, `object_versions`, `revalidate`, `verification`
writing    `writer`, `resize`, `append_batch`
creating   `create`, `create_options`, `cells`
=========  ===================================================================
"""
