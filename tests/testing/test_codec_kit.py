"""`CodecTests` passes for codecs of this package, and says what is wrong with others."""

from dataclasses import dataclass, field

import pytest

import zarr_dask as zd
from zarr_dask.codecs import BytesCodec
from zarr_dask.codecs.arrays import Transpose
from zarr_dask.codecs.checksum import Crc32c
from zarr_dask.codecs.compress.blosc import Blosc
from zarr_dask.codecs.compress.deflate import Gzip
from zarr_dask.codecs.numeric.filters import ArrayFilter
from zarr_dask.codecs.numeric.packbits import PackBits
from zarr_dask.codecs.numeric.scale_offset import ScaleOffset
from zarr_dask.codecs.registry import CODECS, codec_from_v3, v3_names
from zarr_dask.errors import MissingDependencyError, UnknownCodecError
from zarr_dask.testing.codecs import CodecTests


class TestOwnCodecs(CodecTests):
    @pytest.fixture(
        params=[
            Blosc("zstd", typesize=4),
            Crc32c(),
            Gzip(3),
            PackBits(),
            ScaleOffset("1", "2"),
            Transpose((1, 0)),
            ArrayFilter("quantize", '{"dtype": "<f8", "digits": 3}'),
        ],
        ids=lambda codec: codec.name,
    )
    def codec(self, request):
        return request.param


@zd.register_codec
@dataclass(frozen=True)
class Xor(BytesCodec):
    """All bits turned around where the bits of a mask are set."""

    mask: int = 255
    name = "tests.xor"
    in_numcodecs = True

    def __post_init__(self):
        if type(self.mask) is not int or not 0 <= self.mask < 256:
            raise ValueError(f"mask is {self.mask!r}, not a byte")

    def configuration(self):
        return {"mask": self.mask}

    def size(self, size):
        return size

    def encode(self, buffer, itemsize):
        return bytes(byte ^ self.mask for byte in memoryview(buffer).cast("B"))

    def decode(self, buffer, size):
        size.check("masked bytes", len(buffer))
        return self.encode(buffer, 1)


class TestForeignCodec(CodecTests):
    @pytest.fixture
    def codec(self):
        return Xor(15)


@dataclass(frozen=True)
class Unregistered(Xor):
    name = "tests.unregistered"


@zd.register_codec
@dataclass(frozen=True)
class Careless(Xor):
    name = "tests.careless"

    def __post_init__(self):
        pass

    def decode(self, buffer, size):
        return self.encode(buffer, 1)


@zd.register_codec
@dataclass(frozen=True)
class Unhashable(Xor):
    name = "tests.unhashable"
    masks: list[int] = field(default_factory=list)


@zd.register_codec
@dataclass(frozen=True)
class Forgetful(Xor):
    name = "tests.forgetful"

    def configuration(self):
        return {}


@zd.register_codec
@dataclass(frozen=True)
class Growing(Xor):
    name = "tests.growing"

    def encode(self, buffer, itemsize):
        return bytes(buffer) + b"more"

    def decode(self, buffer, size):
        return bytes(buffer)[:-4]


@zd.register_codec
@dataclass(frozen=True)
class Fragile(Xor):
    name = "tests.fragile"

    def size(self, size):
        return size.compressed()

    def encode(self, buffer, itemsize):
        return b"magic" + bytes(buffer)

    def decode(self, buffer, size):
        if bytes(buffer[:5]) != b"magic":
            raise KeyError("magic")
        size.check("bytes", len(buffer) - 5)
        return bytes(buffer)[5:]


@pytest.mark.parametrize(
    ("codec", "test", "says"),
    [
        (Unregistered(), "is_registered", "call zarr_dask.register_codec"),
        (Unhashable(), "is_a_value", "tuples instead of lists"),
        (Forgetful(3), "metadata_give_the_codec_back", "must undo configuration"),
        (Careless(), "a_wrong_configuration_is_a_problem", "__post_init__"),
        (Careless(), "size_is_a_limit", r"call size\.check"),
        (Growing(), "size_is_a_limit", "size().most is".replace("()", r"\(\)")),
        (Fragile(), "damaged_bytes_are_refused", "KeyError.*CorruptObjectError"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_failures_say_what_to_do(codec, test, says):
    with pytest.raises((AssertionError, pytest.fail.Exception), match=says):
        getattr(CodecTests(), f"test_{test}")(codec)


# --- the registry ---------------------------------------------------------------------------------


def test_a_foreign_codec_is_named_in_metadata_and_chosen_by_name():
    assert zd.register_codec(Xor) is Xor
    assert "tests.xor" in v3_names()
    a = zd.create_array(store := {}, data=[1, 2, 3], codecs={"name": "tests.xor"})
    assert a.codecs[-1] == Xor()
    assert zd.open(store)[...].tolist() == [1, 2, 3]
    with pytest.raises(UnknownCodecError, match=r"Did you mean 'tests\.xor'"):
        zd.create_array({}, shape=3, dtype="i4", codecs="tests.xo")


@pytest.mark.parametrize(
    ("attributes", "error", "says"),
    [
        ({"name": "gzip"}, ValueError, "taken by zarr_dask"),
        ({"name": "tests.xor"}, ValueError, "choose another name"),
        ({"name": ""}, TypeError, "name = 'yourpackage"),
    ],
    ids=["gzip", "tests.xor", "none"],
)
def test_names_that_cannot_be_registered(attributes, error, says):
    with pytest.raises(error, match=says):
        zd.register_codec(type("Other", (Xor,), attributes))


def test_classes_that_cannot_be_registered():
    half = type("Half", (BytesCodec,), {"name": "tests.half"})
    with pytest.raises(TypeError, match="has no configuration, decode, encode, size"):
        zd.register_codec(half)
    with pytest.raises(TypeError, match=r"derived from zarr_dask\.codecs\.BytesCodec"):
        zd.register_codec(type("Thing", (), {"name": "tests.thing"}))


def test_every_own_codec_has_an_example():
    for name in CODECS.own_names():
        cls = CODECS.find(name)
        given = cls.with_defaults(name, cls.example(name, "<i4"), 4)
        if name not in {"sharding_indexed", "endian"}:
            assert isinstance(codec_from_v3({"name": name, "configuration": given}, ""), cls), name


def test_an_entry_point_that_cannot_be_loaded(tmp_path, monkeypatch):
    folder = tmp_path / "broken-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[zarr_dask.codecs]\ntests.broken = no_such_module:Codec\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(CODECS.__dict__, "_points", raising=False)
    with pytest.raises(MissingDependencyError, match=r"listed by broken as .*reinstall"):
        zd.create_array({}, shape=3, dtype="i4", codecs="tests.broken")
    monkeypatch.delitem(CODECS.__dict__, "_points")
