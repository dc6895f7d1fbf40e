"""Codecs of numbers: casting, scaling, rounding, packing."""
