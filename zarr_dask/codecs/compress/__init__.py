"""Compressors.

==============  ======================================================
streams         `deflate`, `libdeflate`
frames, blocks  `blosc`, `blosc_frames`, `zstd`, `lz4`, `n5`, `snappy`
their base      `compressor`
==============  ======================================================
"""
