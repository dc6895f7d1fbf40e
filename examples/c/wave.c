/* Ranks of a simulation in C: each holds a quarter of a field, and writes five steps at a time.

       python examples/c/wave.py run.zarr create
       cc -O2 -o wave examples/c/wave.c examples/c/zd_rank.c
       for rank in 0 1 2 3; do ./wave run.zarr 20 $rank & done; wait
       python examples/c/wave.py run.zarr publish

   With MPI: mpicc -DWITH_MPI, and mpiexec -n 4 ./wave run.zarr 20. */
#include "zd_rank.h"
#include <stdio.h>
#include <stdlib.h>
#ifdef WITH_MPI
#include <mpi.h>
#endif

enum { ROWS = 32, COLUMNS = 64, STEPS = 5 };

static void check(int failed) {
    if (failed) fprintf(stderr, "%s\n", zd_error()), exit(1);
}

int main(int count, char **words) {
    int rank = count > 3 ? atoi(words[3]) : 0;
    long steps = atol(words[2]);
#ifdef WITH_MPI
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
#endif
    static float block[STEPS][ROWS][COLUMNS];
    double time = 0;
    const void *blocks[] = {block}, *times[] = {&time};
    long coords[] = {rank / 2, rank % 2};

    zd_rank *out = zd_attach(words[1], "", rank, ZD_CHECKSUM);
    check(!out);
    for (long step = zd_stored(out, "wave"); step < steps; step++) {
        long first = step / STEPS * STEPS;
        for (int y = 0; y < ROWS; y++)
            for (int x = 0; x < COLUMNS; x++)
                block[step % STEPS][y][x] =
                    1 + step * 10000 + (y + coords[0] * ROWS) * 128 + x + coords[1] * COLUMNS;
        time = step / 2.0;
        if (rank == 0)
            check(zd_write(out, "time", step, step, step + 1, 1, 0, NULL, times, sizeof time));
        if (step % STEPS == STEPS - 1)
            check(zd_write(out, "wave", first / STEPS, first, step + 1, 1, 2, coords, blocks,
                           sizeof block));
    }
    zd_detach(out);
#ifdef WITH_MPI
    MPI_Finalize();
#endif
    return 0;
}
