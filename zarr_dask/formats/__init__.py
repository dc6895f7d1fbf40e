"""Formats: metadata documents and key layouts; only this package depends on versions.

===============  ==========================================================================
the model        `base`, `documents`, `handles`, `parse_cache`
finding          `detect`, `consolidated`
changing         `concurrent_edit`, `translate`, `missing_values`
v1, v2           `v1`, `v1_document`, `v2`, `v2_document`, `numpy_dtype_json`, `references`
v3               `v3`, `v3_grids`
the draft of v3  `v3draft`, `v3draft_entry`, `v3draft_document`, `v3draft_codecs`,
                 `v3draft_types`, `v3draft_2023`
archives         `archive_comment`
===============  ==========================================================================
"""
