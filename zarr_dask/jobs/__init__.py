"""Jobs: plans as values, and what runs them on dask."""
