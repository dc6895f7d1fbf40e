"""Helpers that know nothing of arrays: arguments, warnings, text, buffers and threads.

=========  =================================================
arguments  `arguments`, `keywords`, `json_fields`
names      `lazy_names`, `class_registry`, `xarray_accessor`
output     `display`, `warnings`, `show_versions`
work       `threads`, `buffers`, `control_groups`
=========  =================================================
"""
