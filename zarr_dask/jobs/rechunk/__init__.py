"""Rechunking arrays within a memory limit: the planner, plans, and jobs that run them.

========  =====================================================================
the call  `rechunk`, `dask_source`, `target_spec`
the plan  `planner`, `plan`, `joint_plan`, `compression_sample`, `html`, `plot`
the work  `job`, `copy_task`, `verify_copy`
========  =====================================================================
"""
