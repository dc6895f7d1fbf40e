"""Many files into one store: NetCDF, HDF5, and what else xarray reads.

==============  =================================================================
files           `source_file`, `hdf5`, `hdf5_file`, `netcdf3`, `engine`, `header`
the survey      `survey`, `differences`, `broken`
as one dataset  `combine`, `convert`, `time_units`
as a store      `file_store`, `dataset_store`, `described`, `reference`
the job         `ingest`, `footprint`
==============  =================================================================
"""
