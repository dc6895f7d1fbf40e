"""Jobs: plans as values, and the code that runs them on dask."""
