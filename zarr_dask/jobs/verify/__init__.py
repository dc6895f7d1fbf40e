"""Verification of stored data: a census of objects, comparisons and digests of values.

==============  ==================================================================
stored objects  `verify`, `scan`, `expected`, `object_states`, `orphans`, `report`
values          `compare`, `digest`
==============  ==================================================================
"""
