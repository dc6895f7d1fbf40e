"""Calls by habits of zarr-python, h5py, xarray, dask and rechunker: each works, or is answered.

A row holds a call, and its value, or its error with the words that tell what to write instead.
"""

import ast
import builtins
import doctest
import importlib
import inspect
import zipfile
from operator import attrgetter

import dask
import dask.array as da
import h5py
import numcodecs
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import zarr_dask as zd


@pytest.fixture
def names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = np.arange(24, dtype="f4").reshape(4, 6)
    zd.create_array("a.zarr", data=values, chunks=(2, 3), dimension_names=("y", "x"))
    zd.create_array("zero.zarr", data=np.array(5.0))
    g = zd.open_group("g.zarr", mode="w")
    for name in ("temp", "salt"):
        g.create_array(name, data=values[:3, :4], dimension_names=("time", "x"))
    zd.ome.write(values, "i.zarr", axes="yx")
    g.create_group("sub").create_array("deep", data=np.ones(3))
    return {
        "zd": zd, "np": np, "da": da, "xr": xr, "pd": pd, "dask": dask, "h5py": h5py, "zarr": zarr,
        "numcodecs": numcodecs,
        "g": g,
        "a": zd.open("a.zarr", mode="r+"), "z": zd.open("zero.zarr"),
        "x": da.ones((8, 8), chunks=(4, 4)),
        "ds": xr.Dataset({"t": (("time", "x"), np.ones((3, 2)))}),
    }  # fmt: skip


def run(code, names):
    """Return the value of the last expression of some statements."""
    *before, last = code.split("; ")
    for one in before:
        exec(one, names)  # noqa: S102
    return eval(last, names)  # noqa: S307


_NEW = "zd.create_array('n.zarr', shape=(4, 4), dtype='f4', chunks=2, "
WORKS = {
    _NEW + "filters=[]).codecs[-1].name": "crc32c",
    _NEW + "filters='auto', serializer='auto', compressors='auto').codecs[-1].name": "crc32c",
    _NEW + "compressors=None).codecs[-1].name": "bytes",
    _NEW + "compressor=None, zarr_format=2).codecs[-1].name": "bytes",
    "zd.copy('a.zarr', 'n.zarr', compressor=None); zd.open('n.zarr').codecs[-1].name": "bytes",
    "zd.copy('a.zarr', 'n.zarr', compressors='auto'); zd.open('n.zarr').codecs[-1].name": "crc32c",
    "zd.copy('g.zarr', 'n.zarr', compressors={'temp': 'gzip'}); "
    "zd.open('n.zarr/temp').codecs[-1].name": "gzip",
    _NEW + "filters=[zarr.codecs.TransposeCodec(order=(1, 0))]).codecs[0].name": "transpose",
    _NEW + "serializer=zarr.codecs.BytesCodec(endian='big')).codecs[0].endian": "big",
    _NEW + "compressors=[zarr.codecs.GzipCodec(), 'crc32c']).codecs[-1].name": "crc32c",
    "c = zarr.codecs; q = "
    + _NEW
    + "shards=4, filters=c.TransposeCodec(order=(1, 0)), serializer=c.BytesCodec(), "
    "compressors=c.ZstdCodec()); q[...] = 3; zarr.open('n.zarr')[3, 3].item()": 3,
    _NEW + "zarr_format=2, compressors=zarr.codecs.BloscCodec(clevel=7)).codecs[-1].clevel": 7,
    _NEW + "zarr_format=2, codecs=zd.codecs.Zstd(level=5)).codecs[-1].level": 5,
    _NEW
    + "zarr_format=2, codecs={'name': 'gzip', 'configuration': {'level': 3}}).codecs[1].level": 3,
    _NEW + "compressors=numcodecs.CRC32C()).codecs[-1].name": "crc32c",
    "q = zd.create_array('n.zarr', data=['a'], filters=numcodecs.VLenUTF8(), compressors='zstd'); "
    "zarr.open('n.zarr')[0], q.codecs[0].name": ("a", "vlen-utf8"),
    "str(zd.create_array('n.zarr', shape=3, dtype=zarr.dtype.Int16()).dtype)": "int16",
    "zd.create_array('n.zarr', data=['a'], dtype=zarr.dtype.VariableLengthUTF8())[0]": "a",
    "zd.create_array('n.zarr', shape=1, dtype=zarr.dtype.VariableLengthBytes())[0]": b"",
    "'1 stored object ' in str(zd.to_zarr(x, 'n.zarr', chunks=8))": True,
    "bool(z), not z": (True, False),
    "bool(zd.zeros(())), bool(a), bool(zd.zeros(0))": (False, True, False),
    "a.attrs = {'u': 1}; a.attrs = {'v': 2}; dict(zd.open('a.zarr').attrs)": {"v": 2},
    "g.attrs = {'u': 1}; g.attrs.put({'v': 2}); dict(zd.open('g.zarr').attrs)": {"v": 2},
    "a.attrs['u'] = 1; a.attrs |= {'v': 2}; dict(zd.open('a.zarr').attrs)": {"u": 1, "v": 2},
    "a.resize({'y': 6}); a.shape": (6, 6),
    "a.resize(size=(2, 6)); a.shape": (2, 6),
    "a.append(np.ones((4, 1)), axis=1); a.shape": (4, 7),
    "str(g.tree(level=1)).count('─')": 6,
    "str(g.tree()).count('deep')": 1,
    "i = zd.ome.open('i.zarr'); i.shape, i.ndim, str(i.dtype)": ((4, 6), 2, "float32"),
    "np.asarray(zd.ome.open('i.zarr').level(0)).shape": (4, 6),
    "zd.ome.write(a[...], 'n.zarr', axes='YX', scale={'Y': 2}, units='um', version=0.4); "
    "i = zd.ome.open('n.zarr'); i.axes, i.levels[0].scale, i.multiscale.axes[0].unit": (
        *(("y", "x"), (2, 1), "micrometer"),
    ),
    "zd.ome.write(xr.DataArray(a[...], dims=('Y', 'X')), 'n.zarr'); zd.ome.open('n.zarr').axes": (
        *("y", "x"),
    ),
    "zd.ome.write(xr.DataArray(x, dims=('q', 'p')), 'n.zarr', axes='yx'); "
    "zd.ome.open('n.zarr').shape": (8, 8),
    "zd.ome.write(zarr.open('a.zarr'), 'n.zarr'); int(zd.ome.open('n.zarr').level(0)[...].sum())": (
        276
    ),
    "zd.ome.open('i.zarr').crop(y=slice(0, 2)).to_dask().shape": (2, 6),
    "p = zd.ome.open('i.zarr').crop(x=0); p.ndim, p.dtype.str": (1, "<f4"),
    "repr(zd.ome.open('i.zarr').crop(y=slice(0, 2)))": (
        "<zarr_dask.ome.ImagePixels (y: 2, x: 6) float32>"
    ),
    "repr(zd.ome.open('i.zarr').labels)[-7:]": ": none>",
    "zd.copy('a.zarr', 'n.zarr', compressor='zstd'); zd.open('n.zarr').codecs[1].name": "zstd",
    "zd.copy('a.zarr', 'n.zarr', zarr_format=2); zd.open('n.zarr').format": "v2",
    "zd.copy('a.zarr', 'n.zarr', format=2); zd.migrate('n.zarr', zarr_format=3); "
    "zd.open('n.zarr', format=3).format": "v3",
    "zd.rechunk('g.zarr', 'n.zarr', chunks={'temp': {'time': 1}, 'salt': None}); "
    "zd.open('n.zarr/temp').chunks, zd.open('n.zarr/salt').chunks": ((1, 4), (3, 4)),
    "dask.compute(a, x.sum())[1]": 64,
    "dask.delayed(lambda b: type(b).__name__)(a).compute()": "Array",
    "dask.is_dask_collection(a)": False,
    "dask.compute(a.to_dask())[0].sum()": 276,
    "np.sum(a), np.mean(a)": (276, 11.5),
    "[repr(one) for one in a[0, :2].tolist()]": ["0.0", "1.0"],
    "a[[0, 2], 1].tolist()": [1, 13],
    "a[a[...] > 22].tolist()": [23],
    "a[0] += 1; a[0].tolist()": [1, 2, 3, 4, 5, 6],
    "a[...] = xr.DataArray(np.ones((4, 6))); a[0, 0]": 1,
    "zd.zeros((2, 2), store='n.zarr'); zd.open('n.zarr').shape": (2, 2),
    "zd.rechunk('a.zarr', target_store='n.zarr', target_chunks=(1, 1)); zd.open('n.zarr').chunks": (
        1,
        1,
    ),
    "repr(zd.to_zarr(ds, 'n.zarr'))": "<DatasetReport: 1 variable, 48 B (24 B stored)>",
    "xr.open_dataset('g.zarr', engine='zarr_dask').sizes['time']": 3,
    "zd.create_array(store='n.zarr', name='x/y', shape=4, dtype='f4').path": "x/y",
    "zd.open(store='a.zarr').shape, zd.open_group(store='g.zarr').name": ((4, 6), "/"),
    "zd.create_array('n.zarr', shape=4, dtype='f4', compressors='auto').codecs[-1].name": "crc32c",
    "zd.open('n.zarr', mode='w', shape=4, dtype='f4', compressors='zstd').codecs[-1].name": "zstd",
    "zd.to_zarr(ds, 'n.zarr', group='sub'); zd.open('n.zarr/sub/t').shape": (3, 2),
    "zd.to_zarr(ds, 'n.zarr', path='sub'); zd.open('n.zarr/sub/t').shape": (3, 2),
    "zd.to_zarr(ds, 'n.zarr', 'sub'); zd.open('n.zarr/sub/t').shape": (3, 2),
    "zd.to_zarr(ds, 'n.zarr', consolidated=True, safe_chunks=False, synchronizer=None).objects": 1,
    "zd.ome.write(a[...], 'n.zarr', axes='yx', pixel_size=(2, 2), fmt='0.4'); "
    "zd.ome.open('n.zarr').levels[0].scale": (2, 2),
    "repr(zd.plan_write(ds, 'n.zarr'))[:13]": "<DatasetPlan:",
    "zd.zeros((3, 3), './f4').shape": (3, 3),
    "zd.zeros((3, 3), store='n.zarr', dtype='f4').dtype.str": "<f4",
    "zd.array([[1, 2], [3, 4]], 'n.zarr', chunks=(2, 2)).chunks": (2, 2),
    "zd.save('n.zarr', a=np.ones(2), b=np.ones(3)); sorted(zd.load('n.zarr'))": ["a", "b"],
    "len(g), list(g), 'temp' in g, '../x' in g": (3, ["salt", "sub", "temp"], True, False),
    "g['/temp'].shape, g['sub/deep'].shape, g.get('none')": ((3, 4), (3,), None),
    "del g['temp']; list(g)": ["salt", "sub"],
    "g['q'] = np.ones((4, 6)); g['q'].shape": (4, 6),
    "g.require_group('sub').basename, g.require_array('new', shape=3, dtype='i2').size": ("sub", 3),
    "a.attrs['n'] = np.float32(1.5); a.attrs['n']": 1.5,
    "a.attrs['n'] = np.arange(3); a.attrs['n']": [0, 1, 2],
    "a[None].shape, a[..., None].shape, a[::-1, 0].tolist()": (
        (1, 4, 6),
        (4, 6, 1),
        [18, 12, 6, 0],
    ),
    "a[[0, 1], [1, 2]].tolist(), a.oindex[[0, 1], [1, 2]].shape": ([1, 8], (2, 2)),
    "a.vindex[[0, 1], [0, 1]].tolist(), a.blocks[0, 0].shape": ([0, 7], (2, 3)),
    "a.set_basic_selection((0, 0), 9); a[0, 0]": 9,
    "zd.rechunk(x, 'n.zarr', chunks=(2, 8)).objects": 4,
    "a.attrs.setdefault('u', 1), a.attrs.setdefault('u', 2)": (1, 1),
    "a.append(data=np.ones((2, 6)), dim='y'); a.append(np.ones((6, 1)), 'x'); a.shape": (6, 7),
    "a.get_mask_selection(mask=a[...] > 22).tolist()": [23],
    "a.update_attributes(new_attributes={'u': 1}).attrs['u']": 1,
    "np.concatenate([a, a]).shape, np.max(a), len(a)": ((8, 6), 23, 4),
    "float(z), int(z)": (5, 5),
    "zd.from_zarr('g.zarr', component='temp', chunks=(1, 4)).numblocks": (3, 1),
    "zd.from_zarr('a.zarr', chunks={'y': 1}).numblocks": (4, 2),
    "zd.to_zarr(x, 'n.zarr', attrs={'u': 'm'}, dims=('y', 'x')); zd.open('n.zarr').attrs['u']": "m",
    "zd.to_zarr(x, url='n.zarr', component='c', overwrite=True, return_stored=True).shape": (8, 8),
    "bool(zd.to_zarr(x, 'n.zarr', verify=True))": True,
    "zd.to_zarr([1, 2, 3], 'n.zarr').nbytes, zd.load('n.zarr').tolist()": (24, [1, 2, 3]),
    "zd.save('n.zip', [1, 2]); zd.load('n.zip').tolist()": [1, 2],
    "zd.save('n.zip', a=[1], b=2.0); zd.save('n.zip', [3], path='c'); sorted(zd.load('n.zip'))": [
        *("a", "b", "c"),
    ],
    "zd.save('n.zip', a=[1]); zd.save('n.zip', b=[1], overwrite=True); sorted(zd.load('n.zip'))": [
        "b",
    ],
    "zd.to_zarr(3.0, 'n.zarr'); zd.load('n.zarr').tolist()": 3,
    "zd.open('file:a.zarr').shape, zd.open('g.zarr//temp').shape": ((4, 6), (3, 4)),
    "zd.rechunk('a.zarr', 'n.zarr', chunks={'y': -1}); zd.open('n.zarr').chunks": (4, 3),
    "zd.rechunk('g.zarr', 'n.zarr', chunks={'temp': (1, 2), 'sub/deep': [2], 'x': 3}); "
    "[zd.open(f'n.zarr/{name}').chunks for name in ('temp', 'salt', 'sub/deep')]": [
        *((1, 2), (3, 3), (2,)),
    ],
    "zd.rechunk(ds, 'n.zarr', chunks={'time': 1}); zd.open('n.zarr/t').chunks": (1, 2),
    "zd.write_dataset(ds, 'n.zarr', chunks={'t': (1, 2)}); zd.open('n.zarr/t').chunks": (1, 2),
    "zd.write_dataset(ds, 'n.zarr', chunks={'x': 1, 't': {'time': 2}}); "
    "zd.open('n.zarr/t').chunks": (2, 1),
    "zd.write_dataset(ds, 'n.zarr', codecs={'id': 'gzip', 'level': 1}); "
    "zd.open('n.zarr/t').codecs[-1].name": "gzip",
    "zd.to_zarr(ds, 'n.zarr'); ds.t.zd.compare('n.zarr')": {},
    "'(3, 2)' in ds.t.zd.info(), 'to_zarr' in repr(ds.zd)": (True, True),
}


@pytest.mark.parametrize("code", WORKS)
def test_a_call_works(code, names):
    assert run(code, names) == WORKS[code]


ANSWERED = {
    _NEW + "codecs={'name': 'zstd', 'level': 3})": (ValueError, "'configuration': {'level': 3}"),
    _NEW + "codecs=zarr.codecs.ZstdCodec)": (TypeError, r"instance: ZstdCodec\(\)"),
    _NEW + "codecs=numcodecs.Zstd)": (TypeError, r"instance: Zstd\(\)"),
    _NEW + "codecs=False)": (ValueError, r"codecs=\[\] stores"),
    _NEW + "codecs=[('zstd', 3)])": (ValueError, "{'name': 'zstd', 'configuration'"),
    _NEW + "serializer='zstd')": (TypeError, "given as compressors= or filters="),
    _NEW + "filters=zarr.codecs.BytesCodec())": (TypeError, "given as serializer="),
    "a.shape = (3, 4)": (AttributeError, r"array\.resize\(shape\)"),
    "a.chunks = (1, 1)": (AttributeError, r"zarr_dask\.rechunk"),
    "a.dtype = 'f8'": (AttributeError, r"copy\(\.\.\., dtype="),
    "a.fill_value = 1": (AttributeError, "fixed when the array is created"),
    "a.attributes = {}": (AttributeError, r"node\.attrs = \{"),
    "a.units = 'm'": (AttributeError, r"node\.attrs\['units'\]"),
    "g.name = 'b'": (AttributeError, "rename"),
    "a[{'y': 0}]": (IndexError, "open_dataset"),
    "a += 1": (TypeError, r"array\[\.\.\.\] \+= values"),
    "a.append([1, 2, 3, 4, 5, 6])": (ValueError, r"values\[None\]"),
    "a.append([[1] * 6], axis='z')": (ValueError, r"one of \['y', 'x'\]"),
    "z.append([1], axis='z')": (ValueError, "a position, as they have no names"),
    "a.get_basic_selection(..., prototype=None)": (TypeError, "NumPy arrays"),
    "a.get_basic_selection(..., fields='x')": (TypeError, r"array\[\.\.\.\]\['name'\]"),
    "g.members(use_consolidated_for_children=False)": (TypeError, r"consolidated=False\)"),
    "zd.create_array('n', data=[1], write_data=False)": (TypeError, "with shape= and dtype="),
    "zd.to_zarr(ds, 'n.zarr', chunk_store={})": (TypeError, "in one store"),
    "zd.open_dataset('g.zarr', sel={'time': 0})": (TypeError, r"dataset\.sel"),
    "zd.open_dataset('g.zarr', region={'time': 0})": (TypeError, r"dataset\.isel"),
    "a.extend([1])": (AttributeError, r"array\.append"),
    "zd.compare('a.zarr', 'a.zarr').ok": (AttributeError, "equal is True if nothing differs"),
    "a.resize(y=6)": (TypeError, "It takes prune, shape"),
    "a.resize({'z': 6})": (ValueError, r"it has \['y', 'x'\]"),
    "zd.rechunk('g.zarr', 'n.zarr', chunks={'temp': (1, 1, 1)})": (
        ValueError,
        "expected 2 lengths",
    ),
    "zd.save('n.zip', a=[1]); zd.save('n.zip', b=[1])": (FileExistsError, "overwrite=True"),
    "zd.open('a.zarr', write=True)": (TypeError, r"mode='r\+'"),
    "zd.open('a.zarr', open=True)": (TypeError, "mode='r' opens"),
    "zd.open('a.zarr', recheck_cached_data=False)": (TypeError, "read anew"),
    "zd.create_array('n', shape=3, dtype='f4', codecs='gzip', level=9)": (
        TypeError,
        "'configuration'",
    ),
    "zd.to_zarr(x, zarr_array=a)": (TypeError, r"to_zarr\(x, url\)"),
    "zd.rechunk('a.zarr', 'n.zarr', chunks=1, array_dims=True)": (TypeError, "are copied"),
    "zd.plan_rechunk('a.zarr', 'n.zarr', chunks=1).visualize()": (AttributeError, r"plot\(\)"),
    "zd.plan_rechunk('a.zarr', 'n.zarr', chunks=1).summary()": (AttributeError, "print"),
    "zd.AsyncArray": (AttributeError, "from_zarr"),
    "zd.Blosc(cname='zstd')": (AttributeError, r"codecs\.Blosc"),
    "zd.FSStore('n.zarr')": (AttributeError, "storage_options="),
    "zd.is_zarr('a.zarr')": (AttributeError, "NodeNotFoundError"),
    "zd.LRUStoreCache(a.store, 9)": (AttributeError, r"stores\.Cache"),
    "zd.map_blocks(abs, a)": (AttributeError, "from_zarr"),
    "zd.MemoryStore()": (AttributeError, "A dict"),
    "zd.SingleHdf5ToZarr('f.h5')": (AttributeError, "zarr_dask.reference"),
    "zd.save_mfdataset([ds], ['n.zarr'])": (AttributeError, "write_dataset"),
    "g.to_dataframe()": (AttributeError, r"open_dataset\(group\).to_dataframe"),
    "g.from_array('q', x)": (AttributeError, "group.create_array"),
    "a.to_dataarray()": (AttributeError, "zarr_dask.open_dataset"),
    "zd.open_array('a.zarr', config={'order': 'F'})": (TypeError, "order="),
    "zd.open('zip://n.zip')": (OSError, "opened as 'n.zip' or 'zip://::n.zip'"),
    "zd.open('reference://n.json')": (OSError, "write reference://::n.json"),
    "zd.open_groups('g.zarr')": (AttributeError, "open_datatree"),
    "zd.print_debug_info()": (AttributeError, "show_versions"),
    "zd.set_default_codecs": (AttributeError, "codecs="),
    "zd.ThreadSynchronizer()": (AttributeError, "no lock"),
    "zd.to_netcdf(ds, 'n.nc')": (AttributeError, "to_netcdf"),
    "g.create_dataset_like('q', a)": (AttributeError, "zeros_like"),
    "g.create_virtual_dataset('v', None)": (AttributeError, "reference"),
    "a.shuffle": (AttributeError, r"array\.codecs"),
    "list(a.iter_chunks())": (AttributeError, "blocks"),
    "a.make_scale('x')": (AttributeError, "dimension_names="),
    "a.is_virtual": (AttributeError, r"array\.url"),
    "a.async_array": (AttributeError, "to_dask"),
    "a.chunk_grid": (AttributeError, r"array\.write_chunks"),
    "a.digest()": (AttributeError, r"digest\(array\)"),
    "a.label": (AttributeError, "dimension_names"),
    "a.origin": (AttributeError, "starts at 0"),
    "a.ref": (AttributeError, r"array\.url"),
    "a.refresh()": (AttributeError, "anew"),
    "g.temp": (AttributeError, r"zarr_dask\.Group has no 'temp'\. Nodes are found by key"),
    "g.open_array('temp')": (AttributeError, r"group\['name'\] opens"),
    "g['temp'] = np.ones(3)": (FileExistsError, r"group\['temp'\]\[\.\.\.\] = values"),
    "g['new'] = xr.DataArray([1])": (TypeError, r"xarray\.DataArray: zarr_dask\.to_zarr"),
    "g['new'] = ds": (TypeError, r"xarray\.Dataset: zarr_dask\.to_zarr"),
    "zd.open('a.zarr/zarr.json')": (FileNotFoundError, r"open .*a\.zarr\."),
    "zd.open('a')": (FileNotFoundError, "mean 'a.zarr'"),
    "zd.open('A.zarr')": (FileNotFoundError, "mean 'a.zarr'"),
    "zd.open('a.zar')": (FileNotFoundError, "mean 'a.zarr'"),
    "zd.open_array('a.zarr', mode='rw')": (ValueError, r"mode='rw': expected 'r', 'r\+'"),
    "zd.open_array('n.zarr', mode='x')": (ValueError, "Use 'w-'"),
    "zd.to_zarr(x, 'n.zarr', dry_run=True)": (TypeError, r"do: plan_write\("),
    "zd.write_dataset(ds, 'n.zarr', dry_run=True)": (TypeError, r"do: plan_dataset\("),
    "zd.verify('a.zarr', dry_run=True)": (TypeError, "It takes"),
    "zd.plan_to_zarr(x, 'n.zarr')": (AttributeError, r"plan_write\(x, url\)"),
    "zd.owners((8, 8), (2, 2))": (AttributeError, "decompos"),
    "zd.open('a.zarr', anon=True)": (TypeError, "storage_options={'anon': True}"),
    "zd.write_zarr(x, 'n.zarr')": (AttributeError, r"to_zarr\(x, url\)"),
    "zd.Dataset()": (AttributeError, "It is xarray's"),
    "zd.rechunk('a.zarr', 'n.zarr', chunks=1, n_workers=4)": (TypeError, r"num_workers=4"),
    "zd.open('pressure.zarr')": (FileNotFoundError, "no such folder. zarr_dask"),
    "zd.open('gs:bucket/a')": (OSError, "'gs://bucket/a'"),
    "zd.create_array('n', shape=3, dtype='flaot32')": (TypeError, "mean 'float32'"),
    "zd.create_array('n', shape=3, dtype='f4', fill_value=None)": (TypeError, "leave it out"),
    "zd.create_array('n', shape=9, dtype='f4', chunks='5')": (ValueError, "'5MB' or '5B'"),
    "zd.create_array('n', shape=9, dtype='f4', chunks=True)": (ValueError, "'auto'"),
    "zd.create_array('n', shape=9, dtype='f4', codecs='lzf')": (ValueError, "'zstd'"),
    "zd.create_array('n', shape=(9, 9), dtype='f4', chunks=('1MB', '2MB'))": (
        ValueError,
        "given once",
    ),
    "zd.arange(3)": (AttributeError, r"zarr_dask\.array\(values, url\)"),
    "zd.to_zarr('n.zarr', x)": (TypeError, "got str; the array comes first"),
    "zd.to_zarr(x, 'n.zarr', compute_kwargs={})": (TypeError, r"dask\.config\.set"),
    "zd.copy('a.zarr', 'n.zarr', if_exists='replace')": (TypeError, "mean 'overwrite'"),
    "zd.copy('a.zarr', 'n.zarr', dry_run=True)": (TypeError, "plan_copy"),
    "zd.migrate('a.zarr', 'n.zarr', zarr_format=2)": (ValueError, r"copy\(.*format='v2'\)"),
    "zd.compare('a.zarr', 'a.zarr', rtol=1)": (TypeError, "assert_allclose"),
    "zd.open_dataset('g.zarr', variables=['temp'])": (TypeError, r"dataset\[\['t'\]\]"),
    "zd.rechunk('a.zarr', 'n.zarr', (2, 2))": (TypeError, "as chunks="),
    "zd.rechunk('g.zarr', 'n.zarr', chunks={'tmp': {'time': 1}})": (ValueError, "mean 'temp'"),
    "zd.plan_rechunk('a.zarr', 'n.zarr', chunks=1).execute()": (AttributeError, r"plan\.run\(\)"),
    "zd.copy('a.zarr', 'n.zarr').compute()": (AttributeError, "has ended"),
    "zd.copy('a.zarr', 'n.zarr').ok": (AttributeError, "all is stored"),
    # zarr-python
    "zd.create_array('n', shape=3, dtype='f4', config={})": (TypeError, "never stored"),
    "zd.ome.write(a[...], 'n.zarr', axes='yx', filters=[])": (TypeError, r"codecs=\[filter"),
    "zd.create_array('n', shape=3, dtype='f4', codecs='zstd', filters=['crc32c'])": (
        TypeError,
        "two names of one thing",
    ),
    "del a[0]": (TypeError, r"array\.resize"),
    "a.chunk_key_encoding": (AttributeError, r"array\.meta\.chunk_key_encoding"),
    "a.drop('x')": (AttributeError, r"zarr_dask\.delete"),
    "zd.open_group('g.zarr', use_consolidated=False)": (TypeError, r"consolidated=False\)"),
    "zd.codecs.BloscCodec": (AttributeError, "mean 'Blosc'"),
    "zd.config.set({})": (AttributeError, "Options are arguments"),
    "zd.storage": (AttributeError, r"zarr_dask\.stores"),
    "zd.create_hierarchy({})": (AttributeError, "create_array"),
    "g.create_dataset('q', data=[1])": (AttributeError, r"group\.create_array"),
    "g.move('temp', 't')": (AttributeError, r"group\.rename"),
    "a.filters": (AttributeError, r"array\.codecs"),
    "a.metadata": (AttributeError, r"array\.meta has"),
    "zd.mean(a)": (AttributeError, r"numpy\.mean takes values"),
    "zd.float32": (AttributeError, r"dtype=numpy\.float32"),
    "zd.newaxis": (AttributeError, r"numpy\.newaxis"),
    "zd.topk(x, 3)": (AttributeError, "It is dask's"),
    "zd.map_overlap(abs, x)": (AttributeError, r"zarr_dask\.from_zarr"),
    "zd.apply_ufunc(abs, a)": (AttributeError, "or xarray's"),
    "zd.date_range('2000', periods=3)": (AttributeError, "It is xarray's"),
    "zd.codecs.BloscShuffle": (AttributeError, "shuffle='bitshuffle'"),
    "zd.codecs.LZ4()": (AttributeError, r"codecs=\[numcodecs\.LZ4"),
    "zd.codecs.Fletcher32()": (AttributeError, r"numcodecs\.Fletcher32"),
    "zd.codecs.register_codec('q', 3)": (AttributeError, r"registry\.register_codec"),
    "zd.codecs.Endian.big": (AttributeError, "endian='little'"),
    "zd.stores.FsspecStore.from_url('s3://b')": (AttributeError, "storage_options="),
    "zd.stores.StorePath": (AttributeError, "A URL is a store"),
    "zd.stores.LoggingStore({})": (AttributeError, r"Recording\(store\)"),
    "zd.stores.WrapperStore({})": (AttributeError, "HookStore"),
    "zd.stores.ManagedMemoryStore('q')": (AttributeError, "MemoryStore"),
    "zd.errors.BaseZarrError": (AttributeError, r"errors\.ZarrDaskError"),
    "zd.errors.ChunkNotFoundError": (AttributeError, r"errors\.ChunkMissingError"),
    "zd.errors.DataTypeValidationError": (AttributeError, r"errors\.DataTypeError"),
    "zd.errors.ZarrUserWarning": (AttributeError, r"errors\.ZarrDaskWarning"),
    "zd.errors.NegativeStepError": (AttributeError, r"errors\.SelectionError"),
    "a.getitem(0)": (AttributeError, r"array\[selection\] reads"),
    "a.setitem(0, 1)": (AttributeError, r"array\[selection\] = values"),
    "g.delitem('temp')": (AttributeError, r"del group\[name\]"),
    "g.getitem('temp')": (AttributeError, r"group\[name\] is a node"),
    # xarray
    "g.groupby('time')": (AttributeError, "dataset of xarray, which has it"),
    "a.groupby('y')": (AttributeError, r"open_dataset\(url\)\[name\]\.groupby"),
    "a.rolling(y=2)": (AttributeError, r"open_dataset\(url\)\[name\]\.rolling"),
    "a.resample(time='1D')": (AttributeError, r"open_dataset\(url\)\[name\]\.resample"),
    "a.sel(y=1)": (AttributeError, r"open_dataset\(url\)\[name\]\.sel"),
    "a.interp(y=1)": (AttributeError, r"open_dataset\(url\)\[name\]\.interp"),
    "a.fillna(0)": (AttributeError, r"open_dataset\(url\)\[name\]\.fillna"),
    "a.chunk({'y': 1})": (AttributeError, r"open_dataset\(url\)\[name\]\.chunk"),
    "a.chunksizes": (AttributeError, r"open_dataset\(url\)\[name\]\.chunksizes"),
    "a.head()": (AttributeError, r"open_dataset\(url\)\[name\]\.head"),
    "a.loc[0]": (AttributeError, r"open_dataset\(url\)\[name\]\.loc"),
    "a.rename('q')": (AttributeError, r"open_dataset\(url\)\[name\]\.rename"),
    "a.to_pandas()": (AttributeError, r"open_dataset\(url\)\[name\]\.to_pandas"),
    "a.to_netcdf('n.nc')": (AttributeError, r"open_dataset\(url\)\[name\]\.to_netcdf"),
    "a.weighted(a)": (AttributeError, r"open_dataset\(url\)\[name\]\.weighted"),
    "a.to_backend('cupy')": (AttributeError, r"array\.to_dask\(\)\.to_backend"),
    # tensorstore
    "a.codec": (AttributeError, r"array\.codecs"),
    "a.kvstore": (AttributeError, r"array\.store"),
    "a.readable": (AttributeError, r"mode='r\+'"),
    "a.resolve()": (AttributeError, "reads the metadata anew"),
    "a.with_transaction(None)": (AttributeError, "as a whole or not at all"),
    "a.translate_to[0]": (AttributeError, r"array\.lazy"),
    "a.storage_statistics()": (AttributeError, r"array\.nchunks_initialized"),
    "zd.Spec({})": (AttributeError, "create_array"),
    "zd.Context()": (AttributeError, "Options are arguments"),
    "zd.Dim('y')": (AttributeError, r"array\.lazy"),
    "zd.virtual_chunked(abs)": (AttributeError, r"zarr_dask\.reference"),
    "zd.KvStore.open('file://')": (AttributeError, r"zarr_dask\.stores"),
    # h5py
    "zd.VirtualLayout((3,))": (AttributeError, r"zarr_dask\.reference\(files"),
    "zd.SoftLink('/a')": (AttributeError, "A node has one path"),
    "zd.special_dtype(vlen=str)": (AttributeError, "dtype='string'"),
    "zd.is_hdf5('a.zarr')": (AttributeError, r"plan_ingest\(files"),
    "a.external": (AttributeError, r"array\.store\.list"),
    "zd.File('n.zarr', 'w')": (AttributeError, "open_group"),
    "g.attrs.create('q', 3)": (AttributeError, r"node\.attrs\[name\] = value"),
    "a.attrs.setdefault('k', []).append(1)": (TypeError, "Assign"),
    "zd.array(np.array(['2000'], 'M8[D]')).append([pd.Timestamp('2001-01-01T12')])": (
        TypeError,
        "as they are",
    ),
    "zd.plan_rechunk('a.zarr', 'n.zarr', chunks=1).save('p.json')": (
        AttributeError,
        r"to_json\(\)",
    ),
    "zd.load_plan('p.json')": (ValueError, "takes the text of a plan"),
    "a.attrs.copy()": (AttributeError, r"dict\(node\.attrs\)"),
    "g.create_array('q', shape=3, dtype='f4', fillvalue=1)": (TypeError, "mean 'fill_value'"),
    "g.create_array('q', shape=3, dtype='f4', maxshape=(None,))": (TypeError, "may grow"),
    "g.create_array('q', (3,), 'f4')": (TypeError, "shape="),
    "a.asstr()": (AttributeError, "texts"),
    "a.value": (AttributeError, r"array\[\.\.\.\] reads"),
    "a.flush()": (AttributeError, "stored when it returns"),
    "g.visit(print)": (AttributeError, r"group\.walk"),
    # NumPy
    "a.fill(3)": (AttributeError, r"array\[\.\.\.\] = value"),
    "a.mean()": (AttributeError, r"to_dask\(\)\.mean"),
    "a > 3": (TypeError, "no operator >"),
    "zd.zeros((3, 3), 'f4')": (TypeError, "dtype='f4'"),
    "zd.ones_like(a, 'float64')": (TypeError, "dtype='float64'"),
    "zd.array([1, 2], 'int16')": (TypeError, "dtype='int16'"),
    "zd.savez('n.zarr', a=1)": (AttributeError, r"zarr_dask\.save\(url, name=values\)"),
    "zd.concatenate([a, a])": (AttributeError, r"dask\.array"),
    "zd.random.random(3)": (AttributeError, r"dask\.array\.random"),
    # dask
    "zd.from_zarr('a.zarr', meta=1)": (TypeError, "blocks"),
    "zd.from_array(a)": (AttributeError, "create_array"),
    "a.compute()": (AttributeError, r"array\.to_dask\(\)\.compute"),
    "a.dask": (AttributeError, "has a graph"),
    "zd.to_zarr(x, 'n.zarr', lock=True)": (TypeError, "no lock is needed"),
    "zd.to_zarr({'t': x}, 'n.zarr')": (TypeError, "component="),
    "zd.to_zarr(x, 'n.zarr', compression='zstd')": (TypeError, "mean 'codecs'"),
    "zd.to_zarr(x, 'n.zarr', chunksize=(2, 2))": (TypeError, "mean 'chunks'"),
    "zd.to_zarr(x, 'a.zarr', region=np.s_[0:4:2])": (ValueError, r"steps \(2, 1\)"),
    # xarray
    "zd.to_zarr(ds, 'n.zarr', 'sub', group='x')": (TypeError, "choose one"),
    "zd.to_zarr(ds, 'n.zarr', append_dim='time')": (FileNotFoundError, "first piece without it"),
    "zd.to_zarr(ds, 'n.zarr', region={'time': slice(0, 1)})": (
        FileNotFoundError,
        "create_dataset",
    ),
    "zd.to_zarr(ds, 'n.zarr', unlimited_dims=['time'])": (TypeError, "append_dim="),
    "zd.to_zarr(ds, 'n.zarr', encoding={'t': {'chunksizes': (1, 2)}})": (
        ValueError,
        "'chunks' for 'chunksizes'",
    ),
    "zd.to_zarr(ds, 'n.zarr', encoding={'t': {'zlib': True}})": (ValueError, "'compressors' for"),
    "zd.write_dataset(ds, 'n.zarr', chunks={'tme': 1})": (ValueError, "mean 'time'"),
    "zd.write_dataset(ds, 'n.zarr', shards={'t': {'tme': 1}})": (ValueError, "mean 'time'"),
    "zd.write_dataset(ds, 'n.zarr', codecs={'tt': 'zstd'})": (KeyError, "mean 't'"),
    "zd.write_dataset(ds, 'n.zarr', chunks=(1, 1, 1))": (ValueError, r"'t': .*\['time', 'x'\]"),
    "zd.write_dataset('n.zarr', ds)": (TypeError, "the dataset comes first"),
    "zd.write_dataset({'t': ds.t}, 'n.zarr')": (TypeError, r"xarray\.Dataset\(variables\)"),
    "zd.write_dataset(x, 'n.zarr')": (TypeError, r"to_zarr\(array, url\)"),
    "zd.to_zarr(ds, 'n.zarr', encoding='zstd')": (TypeError, "for each variable"),
    "zd.to_zarr(ds, 'n.zarr', encoding={'t': 'zstd'})": (ValueError, "'zstd' for 't'"),
    "zd.to_zarr(ds, 'n.zarr', encoding={'t': {'scale': 2}})": (ValueError, "'scale_factor' for"),
    "zd.to_zarr(ds.assign(s=('x', pd.Categorical([1, 2]))), 'n.zarr')": (TypeError, "'s' .*astype"),
    "zd.open_dataset('g.zarr', chunks='object')": (ValueError, "mean 'objects'"),
    "zd.open_dataset(ds)": (TypeError, "open already"),
    "zd.open_mfdataset('none*.zarr')": (FileNotFoundError, "matches no local path"),
    "zd.regions('g.zarr', 'time')": (TypeError, r"of at least 1\.$"),
    "zd.regions('g.zarr', 2, dim='tme')": (ValueError, "^dim='tme'"),
    "ds.zd.write('n.zarr')": (AttributeError, "to_zarr"),
    "ds.zd.to_zar('n.zarr')": (AttributeError, "mean 'to_zarr'"),
    "xr.DataTree(ds).zd.compare('g.zarr')": (TypeError, "node by node"),
    "zd.open(h5py.File('n.h5', 'w'))": (TypeError, "is no place for Zarr"),
    "zd.to_zarr(x, h5py.File('n.h5', 'w'))": (TypeError, "is no place for Zarr"),
    "zd.to_zarr(zarr.open('a.zarr'), 'n.zarr')": (TypeError, r"copy\(array, url\)"),
    "zd.to_zarr(range(3), 'n.zarr')": (TypeError, r"numpy\.array"),
    "zd.open_dataarray('a.zarr')": (AttributeError, r"open_dataset\(url\)\[name\]"),
    "zd.open_dataset('g.zarr', engine='zarr')": (TypeError, r"xarray\.open_dataset"),
    "g.to_dataset()": (AttributeError, "open_dataset"),
    "a.isel(y=0)": (AttributeError, "open_dataset"),
    # rechunker
    "zd.rechunk('a.zarr', (4, 1), '1GB', 'n.zarr')": (TypeError, "by position"),
    "zd.rechunk('a.zarr', 'n.zarr', chunks=2, executor='dask')": (TypeError, "mean 'client'"),
    "zd.Rechunked": (AttributeError, "mean 'rechunk'"),
    # TensorStore
    "zd.open({'driver': 'zarr3', 'kvstore': 'file://a.zarr'})": (TypeError, "the path or URL"),
    "zd.open('a.zarr/|zarr3:')": (FileNotFoundError, r"open\('.*a\.zarr'\)"),
    "zd.open('a.zarr', create=True)": (TypeError, "mode='a'"),
    "zd.open('a.zarr', context={})": (TypeError, "storage_options="),
    "a.read().result()": (AttributeError, "result"),
    "a.result()": (AttributeError, "no future"),
    "a.domain": (AttributeError, r"array\.shape"),
    "a.rank": (AttributeError, r"array\.ndim"),
    "a.spec()": (AttributeError, r"array\.info"),
    # places and files
    "zd.open('g.zarr::temp')": (FileNotFoundError, r"open\('.*g\.zarr', path='temp'\)"),
    "zd.open('g.zarr:temp')": (FileNotFoundError, "path='temp'"),
    "zd.open('g.zarr#temp')": (FileNotFoundError, "path='temp'"),
    "zd.open('https//example.org/a.zarr')": (FileNotFoundError, "'https://example.org/a.zarr'"),
    "zd.ls('g.zarr')": (AttributeError, "open_group"),
    "zd.exists('a.zarr')": (AttributeError, "NodeNotFoundError"),
    "zd.remove('a.zarr')": (AttributeError, r"zarr_dask\.delete"),
    "zd.move('a.zarr', 'b.zarr')": (AttributeError, "rename"),
    "zd.append('a.zarr', [1])": (AttributeError, "append=0"),
    "zd.read('a.zarr')": (AttributeError, "from_zarr"),
    "zd.write('n.zarr', [1])": (AttributeError, "save"),
    "zd.check('a.zarr')": (AttributeError, "verify"),
    "zd.repair('a.zarr')": (AttributeError, "sweep=True"),
    "zd.convert('a.zarr', 'n.zarr')": (AttributeError, "migrate"),
    "zd.copy('g.zarr', 'n.zarr', include=['temp'])": (TypeError, "path= names one node"),
    "zd.copy('g.zarr', 'n.zarr', workers=4)": (TypeError, "mean 'client'"),
    "zd.copy('g.zarr', 'n.zarr', retries=3)": (TypeError, "'retry'"),
    "zd.ome.validate('g.zarr')": (ValueError, r"as zarr_dask\.ome\.write makes"),
    "zd.ome.write_image(a[...], 'n.zarr', axes='yx')": (AttributeError, r"write\(pixels, url\)"),
    "zd.ome.parse_url('n.zarr')": (AttributeError, r"open\(url\) opens an image"),
    "zd.ome.write_multiscale([a[...]], 'n.zarr')": (AttributeError, "pass those of level 0"),
    "zd.ome.to_ngff_image(a[...])": (AttributeError, "makes the levels"),
    "zd.ome.wirte(a[...], 'n.zarr')": (AttributeError, "mean 'write'"),
    "zd.ome.view('n.zarr')": (AttributeError, "zarr-dask ome view"),
    "zd.ome.write(a[...], 'n.zarr', axes='yx', scaler=None)": (TypeError, "mean 'method'"),
    "zd.ome.write(a[...], 'n.zarr', axes='yx', max_layer=3)": (TypeError, "level 0 included"),
    "zd.ome.write(a[...], 'n.zarr', axes='yx', coordinate_transformations=[])": (
        TypeError,
        "scale=, translation=",
    ),
    "zd.ome.open('i.zarr').level('0')": (TypeError, "expected a number"),
    "zd.ome.open('i.zarr').mean('y')": (AttributeError, "to_dask"),
    "zd.ome.open('i.zarr').name": (AttributeError, "multiscale.name"),
    "zd.ome.write('a.zarr', 'n.zarr', axes='yx')": (TypeError, r"open\('a.zarr'\)"),
    "zd.ome.write(a[...], 'n.zarr', axes='yx', zarr_format=2)": (TypeError, "mean 'version'"),
    "zd.ome.open('i.zarr').channels": (AttributeError, r"image\.metadata\.omero"),
    "zd.ome.open('i.zarr').level(0).compute()": (AttributeError, r"level\.to_dask\(\)\.compute"),
    "zd.ome.open('i.zarr').level(0).mean()": (AttributeError, r"level\[\.\.\.\]\.mean"),
    "zd.ome.open('i.zarr').level(0).chunks": (AttributeError, r"level\.array\.chunks has it"),
    "zd.copy('g.zarr', 'n.zarr', sel={'t': slice(0, 1)})": (TypeError, r"zarr_dask\.find_region"),
    "zd.ome.open('i.zarr').scael": (AttributeError, r"ome\.Image has no 'scael'"),
    "zd.ome.open('i.zarr')[0]": (TypeError, r"image\.level\(0\)\[\.\.\.\]"),
    "zd.ome.append('i.zarr', a[...])": (ValueError, "axes='tyx'"),
    "zd.ome.acquire('n.zarr', (3, 4, 6), 'u2', axes='tyx')": (ValueError, "'y': ..., 'x': ..."),
    "zd.ome.open('i.zarr').info": (AttributeError, r"print\(image\)"),
    "zd.ome.open('i.zarr').crop(y=0).compute()": (AttributeError, r"pixels\.to_dask"),
    "zd.ome.migrate('i.zarr', 'n.zarr', version='0.4')": (
        TypeError,
        "to= by position",
    ),
    "zd.ome.convert('a*.tif', 'n.zarr')": (OSError, "aszarr=True"),
    "zd.errors.ContainsArrayError": (AttributeError, "errors.NodeExistsError"),
    "zd.errors.GroupNotFoundError": (AttributeError, "errors.NodeNotFoundError"),
    "zd.LocalStore('a.zarr')": (AttributeError, r"stores\.LocalStore"),
    "zd.FsspecStore.from_url('s3://b')": (AttributeError, "storage_options="),
    "zd.Client()": (AttributeError, r"distributed\.Client"),
    "zd.version": (AttributeError, "__version__"),
    "zd.status('a.zarr')": (AttributeError, "zarr-dask status URL"),
    "zd.codecs.Delta('i4')": (AttributeError, r"codecs=\[numcodecs\.Delta"),
    "zd.verify('a.zarr', fix=True)": (TypeError, "mean 'sweep'"),
    "zd.verify('a.zarr', checksum=True)": (TypeError, "mean 'deep'"),
    "zd.verify('a.zarr', deep=True)": (ValueError, "'decode' reads every chunk"),
    "zd.compare('a.zarr', 'a.zarr', tolerance=1)": (TypeError, "assert_allclose"),
    "zd.create_array('n', shape=3, dtype='f4', units='m')": (TypeError, "attributes={'units'"),
    "zd.to_zarr(x, 'n.zarr', align_chunks=True)": (TypeError, "regrouped"),
    "zd.open_dataset('g.zarr', overwrite_encoded_chunks=True)": (TypeError, "call that writes"),
    "zd.migrate('a.zarr', to='v3')": (TypeError, "mean 'format'"),
    "zd.ingest('*.nc', 'n.zarr', dim='time')": (TypeError, "mean 'concat'"),
    "zd.ingest('*.nc', 'n.zarr', combine='by_coords')": (TypeError, "settle="),
    "zd.ingest('*.nc', 'n.zarr', concat_dim='time')": (ValueError, "matches no file"),
    "a.to_zarr('n.zarr')": (AttributeError, r"zarr_dask\.copy\(array, url\)"),
    "a.open()": (AttributeError, "It is open"),
    "zd.copy('g.zarr', 'n.zarr', log=print)": (TypeError, "getLogger"),
    "zd.copy('g.zarr', 'n.zarr', drop=['temp'])": (TypeError, "path= names one node"),
    "zd.to_zarr(x, 'n.zarr', client=None)": (TypeError, r"distributed\.Client that was made"),
    "zd.to_zarr(x, 'n.zarr', read=None)": (TypeError, r"from_zarr\(url, read="),
    "zd.to_zarr(dask.delayed(abs)(3), 'n.zarr')": (TypeError, r"dask\.array\.from_delayed"),
    "zd.to_zarr(pd.DataFrame({'a': [1.5]}), 'n.zarr')": (TypeError, r"its to_numpy\(\) is"),
    "import dask.bag; zd.to_zarr(dask.bag.range(3, 1), 'n.zarr')": (TypeError, r"list\(values\)"),
    "zd.ome.read('g.zarr')": (AttributeError, r"open\(url\) opens an image"),
    "zd.ome.mosaic('g.zarr')": (AttributeError, r"open_plate\(url\)\.mosaic\(\)"),
    "a[9]": (IndexError, r"a\.zarr: index 9 is out of bounds"),
    "zd.to_zarr(np.array([{}, 3], object), 'n.zarr')": (TypeError, "fill what is missing"),
    "zd.to_zarr(da.ones((2, 6), dtype='f4'), a, region=[0, 1])": (IndexError, r"array\.oindex"),
    "zd.to_zarr(da.ones(6, dtype='f4'), a, region=1)": (IndexError, r"slice\(3, 4\) for the"),
    "zd.save('n.zarr', [[1, 2], [3]])": (TypeError, "different lengths"),
    "zd.save('n.zarr', [pd.Timestamp('2020').date()])": (TypeError, r"datetime64\[us\]"),
    "zd.save('n.zarr', (i for i in range(3)))": (TypeError, r"list\(values\)"),
    "a.attrs['t'] = pd.Timestamp('2020').to_datetime64()": (ValueError, r"str\(value\)"),
    "a.attrs['t'] = np.array(['2020'], 'M8[ns]')": (ValueError, r"value\.astype\(str\)"),
    "a.attrs['t'] = b'm'": (ValueError, r"value\.decode\(\)"),
    "a.attrs['t'] = {1}": (ValueError, r"list\(value\)"),
    "a.attrs['t'] = 1j": (ValueError, r"value\.real"),
    "a.attrs['u'] = 1; a.attrs['unit']": (KeyError, "no attribute 'unit'; it has 'u'"),
    "del a.attrs['unit']": (KeyError, "no attribute 'unit'; it has none"),
    "ds.t.attrs['t'] = np.datetime64('2020', 'ns'); zd.to_zarr(ds, 'n.zarr')": (
        *(TypeError, r"'t' of the variable 't': datetime64.*str\(value\)"),
    ),
    "zd.write_dataset(ds, 'n.zarr', overwrite=True)": (TypeError, "mode='w' replaces"),
    "zd.find_region('g.zarr', ds)": (TypeError, "region='auto'"),
    "zd.compare('g.zarr', ds)": (TypeError, r"dataset\.zd\.compare\(url\)"),
}


@pytest.mark.parametrize("code", ANSWERED)
def test_a_mistake_is_answered(code, names):
    kind, words = ANSWERED[code]
    with pytest.raises(kind, match=words):
        exec(code, names)  # noqa: S102


@pytest.mark.parametrize("above", ["data.zarr/", ""])
@pytest.mark.parametrize("below", ["s/b", "data.zarr/s/b"])
def test_a_url_into_an_archive_has_the_folder_of_all_entries_or_not(above, below, tmp_path):
    group = zd.create_group(tmp_path / "data.zarr")
    group.create_array("s/b", data=np.arange(3))
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for file in (tmp_path / "data.zarr").rglob("*"):
            archive.write(file, above + file.relative_to(tmp_path / "data.zarr").as_posix())
    url = f"{tmp_path}/x.zip/{below}"
    if above or below == "s/b":
        assert zd.open(url)[...].tolist() == zd.open(f"{tmp_path}/x.zip", below)[...].tolist()
    else:
        with pytest.raises(FileNotFoundError):
            zd.open(url)
    zd.to_zarr(np.ones(2), f"{tmp_path}/x.zip/new")
    assert zd.load(f"{tmp_path}/x.zip/new").tolist() == [1, 1]


def test_replaced_attributes_keep_the_names_of_dimensions_that_older_formats_store_in_them():
    array = zd.create_array({}, shape=(2, 3), dtype="i2", dimension_names=["y", "x"], format="v2")
    array.attrs["units"] = "m"
    array.attrs = {"title": "depth"}
    again = zd.open(array.store)
    assert again.dimension_names == array.dimension_names == ("y", "x")
    assert again.user_attributes == {"title": "depth"}
    array.attrs = {"_ARRAY_DIMENSIONS": ["lat", "lon"]}
    assert zd.open(array.store).dimension_names == array.dimension_names == ("lat", "lon")
    del array.attrs["_ARRAY_DIMENSIONS"]
    assert zd.open(array.store).dimension_names is array.dimension_names is None


def test_attributes_of_others_stay_when_some_are_added():
    one = zd.create_array({}, shape=3, dtype="i2")
    other = zd.open(one.store, mode="r+")
    there = one.attrs
    other.attrs["theirs"] = 1
    there |= {"mine": 2}
    one.attrs = there
    assert zd.open(one.store).attributes == {"theirs": 1, "mine": 2}


SIZES = [
    ({0: "10kB"}, (25, 100)),
    ({"y": "10kB"}, (25, 100)),
    ({"y": "10kB", "x": -1}, (12, 200)),
    (("10kB", 25), (100, 25)),
    ({"y": "10kB", "x": "auto"}, (50, 50)),
    ({"y": None, "x": "4kB"}, (100, 10)),
]


@pytest.mark.parametrize(("given", "chunks"), SIZES, ids=str)
@pytest.mark.parametrize("function", ["create_array", "to_zarr", "rechunk", "copy"])
def test_a_size_along_one_dimension_is_that_of_the_whole_chunk(function, given, chunks):
    shape, names = (100, 200), ("y", "x")
    values = np.arange(20_000, dtype="f4").reshape(shape)
    if function == "create_array":
        made = zd.create_array({}, shape=shape, dtype="f4", chunks=given, dimension_names=names)
        unnamed = 200
    elif function == "to_zarr":
        target = {}
        zd.to_zarr(da.from_array(values, 100), target, chunks=given, dimension_names=names)
        made, unnamed = zd.open(target), 100
    else:
        source = zd.create_array({}, data=values, chunks=(50, 100), dimension_names=names)
        getattr(zd, function)(source, target := {}, chunks=given)
        made, unnamed = zd.open(target), 100
    if isinstance(given, dict) and len(given) == 1:  # the other one has the length it had
        chunks = (10_000 // 4 // unnamed, unnamed)
    assert made.chunks == chunks
    if function != "create_array":
        np.testing.assert_array_equal(made[...], values)


@pytest.mark.parametrize("function", ["create_array", "rechunk"])
def test_shards_of_a_size_hold_whole_chunks(function):
    given = {"chunks": (7, 10), "shards": {0: "10kB"}}
    if function == "create_array":
        made = zd.create_array({}, shape=(1000, 200), dtype="f4", **given)
    else:
        source = zd.create_array({}, data=np.ones((1000, 200), "f4"))
        zd.rechunk(source, target := {}, **given)
        made = zd.open(target)
    assert (made.chunks, made.shards) == ((7, 10), (245, 10))


def examples():
    """Yield name and statements of the example of each public object and of its methods."""
    modules = [zd, zd.ome, zd.stores, zd.codecs]
    public = [(name, getattr(module, name)) for module in modules for name in module.__all__]
    classes = [(name, one) for name, one in public if inspect.isclass(one)]
    members = [
        (f"{name}.{member}", getattr(value, "__func__", value))
        for name, one in classes
        for base in one.__mro__
        for member, value in vars(base).items()
        if base.__module__.startswith("zarr_dask") and not member.startswith("_")
    ]
    for name, one in public + members:
        text = one.__doc__
        if isinstance(text, str) and ">>>" in text and not inspect.ismodule(one):
            parts = doctest.DocTestParser().get_examples(inspect.cleandoc(text))
            yield name, "".join(part.source for part in parts)


@pytest.mark.parametrize(("name", "code"), dict(examples()).items())
def test_an_example_of_help_runs_where_it_is_pasted(name, code):
    del name
    used, bound = set(), set(dir(builtins))
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(one.asname or one.name).partition(".")[0] for one in node.names}
    assert used <= bound


METHODS = {
    "Array": "append batch get_basic_selection read resize to_dask update_attributes write",
    "Group": "arrays create_array create_group delete groups members rename tree walk",
    "Writer": "abandon attach create publish region write_step",
    "ome.Image": "level max to_dask",
}
# These take any keyword as a name, or are handed to other programs.
OPEN = {"save", "register_codec", "register_data_type", "register_store", "show_versions",
        "credentials_initializer", "share_credentials"}  # fmt: skip


def takers():
    """Yield name and function of what users call with keywords."""
    for module, prefix in ((zd, ""), (zd.ome, "ome.")):
        for name in module.__all__:
            if inspect.isfunction(getattr(module, name)) and name not in OPEN:
                yield prefix + name, getattr(module, name)
    for kind, names in METHODS.items():
        cls = attrgetter(kind)(zd)
        yield from ((f"{kind}.{name}", getattr(cls, name)) for name in names.split())


@pytest.mark.parametrize(("name", "function"), [*takers()])
def test_an_unknown_keyword_is_answered_with_those_that_are_taken(name, function):
    needed = [
        one
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    with pytest.raises(TypeError, match=r"takes no 'foobarbaz'\. It takes "):
        function(*[None] * len(needed), foobarbaz=1)


# Layout of memory and pickling, which an array in a store has not.
NOT_OF_STORED = frozenset({"A", "base", "ctypes", "to_backend", "external", "virtual_sources"})


@pytest.mark.parametrize(
    ("node", "peer", "cls"),
    [
        ("a", "zarr", "Array"),
        ("g", "zarr", "Group"),
        ("a", "h5py", "Dataset"),
        ("g", "h5py", "Group"),
        ("a", "numpy", "ndarray"),
        ("a", "dask.array", "Array"),
    ],
)
def test_each_public_name_of_a_peers_node_is_served_or_answered(names, node, peer, cls):
    public = {
        name
        for name in dir(getattr(importlib.import_module(peer), cls))
        if not name.startswith("_") and name not in NOT_OF_STORED
    }
    unanswered = set()
    for name in public:
        try:
            hasattr(type(names[node]), name) or getattr(names[node], name)
        except AttributeError as error:
            rest = str(error).partition(f"has no {name!r}.")[2].strip()
            unanswered |= {name} if not rest or "Nodes are found by key" in rest else set()
    assert len(public) > 20
    assert unanswered == set()
