"""Many files into one store: NetCDF, HDF5, and what else xarray reads."""
