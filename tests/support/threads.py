"""The threads that decode and encode the chunks of an array, noted while they work."""

from __future__ import annotations

import threading

from zarr_dask.codecs.chain import BoundCodecChain


def threads_at_work(
    monkeypatch, method: str, chunk_shape: tuple[int, ...], abreast: int = 1
) -> list[int]:
    """Return a list that names the thread of each call of a method of codecs, for such chunks.

    The first call waits until `abreast` threads are in one. Later calls meet nobody: a pool may
    give them to another of its threads.
    """
    found: list[int] = []
    met = threading.Event()
    meeting = threading.Barrier(abreast, action=met.set, timeout=20)
    original = getattr(BoundCodecChain, method)

    def noted(self, *arguments):
        if self.spec.shape == chunk_shape:
            if not met.is_set():
                meeting.wait()
            found.append(threading.get_ident())
        return original(self, *arguments)

    monkeypatch.setattr("zarr_dask._util.threads.cpu_count", lambda: 2)
    monkeypatch.setattr(BoundCodecChain, method, noted)
    return found
