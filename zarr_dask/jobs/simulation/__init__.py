"""Output of simulations, written by independent processes.

===========  ===========================================
for users    `rank_writer`, `decomposition`
a rank       `rank_buffer`, `rank_log`, `mpi`
all of them  `output`, `progress`, `publish`, `restarts`
===========  ===========================================
"""
