"""Hostile inputs, each a function of a seed: noise, and valid bytes that were tampered with."""

import json
import random
from copy import deepcopy

NUMBERS = (0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 2**31 - 1, 2**31, 2**32 - 2,
           2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)  # fmt: skip


def hostile_bytes(seed: str, samples: list[bytes]) -> bytes:
    """Noise (one in eight), else a sample after one to three changes."""
    rng = random.Random(seed)
    if rng.randrange(8) == 0:
        return rng.randbytes(rng.choice((0, 1, 3, 4, 8, 16, 17, 40, 200)))
    data = bytearray(rng.choice(samples))
    for _ in range(rng.randint(1, 3)):
        rng.choice((flip_bits, write_number, nudge_number, cut, repeat, insert))(rng, data)
    return bytes(data)


def place(rng: random.Random, data: bytearray) -> int:
    """Somewhere, more often near the ends, where headers and indices are."""
    near = min(len(data), 40)
    which = rng.randrange(3)
    if which == 0:
        return rng.randrange(near + 1)
    return len(data) - rng.randrange(near + 1) if which == 1 else rng.randrange(len(data) + 1)


def flip_bits(rng, data):
    for _ in range(rng.choice((1, 1, 2, 8))):
        if data:
            data[min(place(rng, data), len(data) - 1)] ^= 1 << rng.randrange(8)


def write_number(rng, data):
    width, at = rng.choice((1, 2, 4, 8)), place(rng, data)
    number = rng.choice((*NUMBERS, len(data), len(data) + 1, len(data) - 1)) % (1 << 8 * width)
    data[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))


def nudge_number(rng, data):
    at = place(rng, data) // 4 * 4
    number = int.from_bytes(data[at : at + 4], "little") + rng.choice((-4, -1, 1, 4, 1 << 16))
    data[at : at + 4] = (number % (1 << 32)).to_bytes(4, "little")


def cut(rng, data):
    at = place(rng, data)
    del data[at : rng.choice((len(data), at + rng.randint(1, 16)))]


def repeat(rng, data):
    at = place(rng, data)
    piece = data[at : at + rng.choice((1, 4, 16, 64))]
    data[at:at] = piece * rng.choice((1, 2, 50))


def insert(rng, data):
    at = place(rng, data)
    data[at:at] = rng.choice((b"\0", b"\xff")) * rng.choice((1, 4, 100))


# --- JSON -----------------------------------------------------------------------------------------

VALUES = (
    None, True, False, 0, 1, -1, 2, 3.0, 1.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**53,
    2**63 - 1, 2**63, 2**64, -(2**63), 10**40, "", "a", "/", ".", "..", "a/b", "\0", "\ud800", "é",
    "NaN", "0x7fc00000", "0x", "AAAA", "|O", "<f4", ">i2", "<M8[ns]", "|V16", "string", "float64",
    "r8", "r999999999999", "C", "F", "bytes", "transpose", "sharding_indexed", "gzip", "x" * 5000,
    [], [0], [1], [-1], [2**62], [2**31] * 4, [1] * 40, [0.5], [None], ["a"], [[]], [[1, 2]], {},
    {"name": "bytes"}, {"id": "zlib"}, {"a": {"b": {}}}, {"must_understand": False},
    {"name": "x", "must_understand": False},
)  # fmt: skip


def hostile_json(seed: str, samples: list[bytes]) -> bytes:
    """A document with some values replaced, removed, doubled or nested, or as mangled text."""
    rng = random.Random(seed)
    text = rng.choice(samples)
    if rng.randrange(6) == 0:
        return hostile_bytes(seed, samples)
    document = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        holder, key = rng.choice(list(places(document)) or [(None, None)])
        if holder is None:
            return json.dumps(rng.choice(VALUES)).encode()
        change(rng, holder, key)
    text = json.dumps(document)
    if rng.randrange(20) == 0 and ", " in text:  # a member that stands twice
        member = rng.choice(text[1:-1].split(", "))
        text = text[:-1] + ", " + member + text[-1]
    return text.encode()


def places(document):
    """Every value of a document, as the object or list that holds it and its place there."""
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in items:
        yield document, key
        yield from places(value)


def change(rng, holder, key):
    which = rng.randrange(10)
    if which == 0:
        del holder[key]
    elif which == 1 and isinstance(holder[key], int) and not isinstance(holder[key], bool):
        holder[key] = rng.choice((-holder[key], holder[key] + 1, holder[key] * 1000, 1 << 62))
    elif which == 2:
        deep = holder[key]
        for _ in range(rng.choice((1, 3, 50))):
            deep = [deep] if rng.randrange(2) else {"a": deep}
        holder[key] = deep
    elif which == 3 and isinstance(holder, list):
        holder.append(deepcopy(holder[key]))
    elif which == 4 and isinstance(holder, dict):
        holder[rng.choice(("x", "", "id", "name", "configuration"))] = deepcopy(holder[key])
    elif which == 5 and isinstance(holder[key], list):
        holder[key] = [deepcopy(item) for item in holder[key] * rng.choice((2, 30))]
    else:
        holder[key] = deepcopy(rng.choice(VALUES))
