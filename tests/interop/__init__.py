"""Files of ours read by other implementations, and theirs by us.

===================  =====================================================================
module               what it holds
===================  =====================================================================
``cases``            the matrix: one `Case` per combination, and what it must read as
``documents``        a `Case` in the words of the specifications (codec lists, fill values)
``ours``             a `Case` through ``zarr_dask``
``zarr_python``      a `Case` through zarr-python
``tensorstore_peer`` a `Case` through tensorstore
``sample``           which cases every run tries, and which only ``make test-all`` does
``check``            a check that a peer has read the values of a case
``refusals``         what a peer cannot do, with the peer's own error
``test_matrix``      every shared case, both directions, and their number
``test_refusals``    every entry of ``refusals`` still holds
``test_parts``       partial reads and writes of arrays that a peer made
``test_groups``      hierarchies, attributes, consolidated metadata
===================  =====================================================================
"""
