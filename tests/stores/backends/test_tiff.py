"""TIFF files that strangers have made: what tifffile raises for damaged ones gets a type."""

from __future__ import annotations

import struct
import threading

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import ZarrDaskError
from zarr_dask.stores.backends.tiff import tiff_store

tifffile = pytest.importorskip("tifffile")

LAYOUTS = {
    "tiles": {"tile": (16, 16), "compression": "zlib"},
    "strips": {"rowsperstrip": 8, "compression": "lzw", "predictor": True},
    "as they are": {"metadata": {"axes": "ZYX"}},
}
CHANGES = {
    "type": lambda entry: entry[:2] + b"\x02\x00" + entry[4:],
    "count": lambda entry: entry[:4] + struct.pack("<I", 0) + entry[8:],
    "value 0": lambda entry: entry[:8] + struct.pack("<I", 0),
    "value": lambda entry: entry[:8] + b"\xff\xff\xff\x7f",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_damaged_tag_is_an_error_of_the_file_or_harmless(layout, tmp_path, caplog):
    caplog.set_level("CRITICAL", "tifffile")
    path = tmp_path / "a.tif"
    values = np.arange(2 * 32 * 48, dtype="u2").reshape(2, 32, 48)
    tifffile.imwrite(path, values, photometric="minisblack", **LAYOUTS[layout])
    whole = path.read_bytes()
    with tifffile.TiffFile(path) as file:
        tags = {tag.name: tag.offset for tag in file.pages[0].tags}
    refused, unnamed = set(), []
    for name, at in tags.items():
        for change, changed in CHANGES.items():
            path.write_bytes(whole[:at] + changed(whole[at : at + 12]) + whole[at + 12 :])
            try:
                array = zd.open_array(tiff_store(str(path), 0))
                if array.nbytes < 1 << 20:
                    array[...]
            except ZarrDaskError as error:
                refused.add((name, change))
                unnamed += [] if str(path) in str(error) else [(name, change, str(error))]
    assert ("ImageWidth", "type") in refused
    assert not unnamed
    path.write_bytes(whole)
    assert np.array_equal(zd.open_array(tiff_store(str(path), 0))[...], values)


@pytest.mark.parametrize("layout", ["tiles", "strips"])
def test_each_thread_decodes_its_own_tiles(layout, tmp_path, monkeypatch):
    """One event loop for all of them would decode one after the other."""
    path = tmp_path / "a.tif"
    values = np.arange(2 * 32 * 48, dtype="u2").reshape(2, 32, 48)
    tifffile.imwrite(path, values, photometric="minisblack", **LAYOUTS[layout])
    array = zd.open_array(tiff_store(str(path), 0))
    page = tifffile.TiffPage
    seen, decode = set(), page.decode.func

    def noting(self):
        decoded = decode(self)

        def note(*args, **kwargs):
            seen.add(threading.get_ident())
            return decoded(*args, **kwargs)

        return note

    monkeypatch.setattr(page, "decode", property(noting))
    np.testing.assert_array_equal(array.read(threads=1), values)
    assert seen == {threading.get_ident()}
