"""Data types of other packages by name."""

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.dtypes import DataType, data_type_from_v3, data_type_of
from zarr_dask.dtypes.registry import DATA_TYPES


class Counts(DataType):
    @classmethod
    def from_config(cls, name, config):
        bits = config.take("bits", lambda v: v in (8, 16), "8 or 16", 8)
        return None if bits is None else cls(name, np.dtype(f"u{bits // 8}"))

    def document(self):
        return self.described(bits=8 * self.itemsize)

    def from_json(self, value):
        return self.scalar(value)

    def to_json(self, value):
        return int(value)

    def scalar(self, value):
        return np.asarray(value, self.dtype)


DOCUMENT = {"name": "tests.counts", "configuration": {"bits": 16}}


@pytest.fixture(scope="module", autouse=True)
def registered():
    """The type, which other tests must not find in the tables of all types."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DATA_TYPES, "_foreign", dict(DATA_TYPES._foreign))
        zd.register_data_type("tests.counts", Counts)
        yield


def test_a_type_with_a_configuration():
    assert data_type_of(DOCUMENT).dtype == np.dtype("u2")
    assert data_type_of("tests.counts").dtype == np.dtype("u1")
    a = zd.create_array(store := {}, shape=3, dtype=DOCUMENT, fill_value=300)
    assert zd.open(store)[...].tolist() == [300] * 3
    assert zd.open(store).meta == a.meta


@pytest.mark.parametrize("configuration", [{"bits": 9}, {"bits": 8, "more": 1}])
def test_its_own_problems(configuration):
    found = data_type_from_v3({"name": "tests.counts", "configuration": configuration})
    assert isinstance(found, list)


def test_older_formats_cannot_name_it():
    with pytest.raises(ValueError, match="data type"):
        zd.create_array({}, shape=3, dtype=DOCUMENT, format="v2")


@pytest.mark.parametrize(
    ("name", "cls", "says"),
    [
        ("float32", Counts, "type of NumPy"),
        ("tests.half", type("Half", (DataType,), {}), "has no from_json, scalar, to_json"),
        ("tests.thing", int, "derived from"),
        ("tests.counts", type("Other", (Counts,), {}), "choose another name"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_types_that_cannot_be_registered(name, cls, says):
    with pytest.raises((TypeError, ValueError), match=says):
        zd.register_data_type(name, cls)
