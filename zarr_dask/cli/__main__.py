"""``python -m zarr_dask.cli`` is ``zarr-dask``."""

from zarr_dask.cli import main

if __name__ == "__main__":
    main()
