"""Writing dask arrays: one task for each stored object, with plans, resuming and checks.

========  ======================================================================
the call  `write`, `request`, `dataset_keywords`, `zarr_python_kwargs`, `checks`
the plan  `plan`, `joint_plan`, `regroup`, `staging`, `target_array`, `plot`
the work  `start`, `running`, `submit`, `target`, `append_state`, `read_back`
the end   `commit`
========  ======================================================================
"""
