"""Rechunking arrays within a memory limit: the planner, plans, and jobs that run them."""
