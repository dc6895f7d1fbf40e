"""``python -m zarr_dask`` is ``zarr-dask``."""

from zarr_dask.cli import main

if __name__ == "__main__":
    main(prog_name="zarr-dask")
