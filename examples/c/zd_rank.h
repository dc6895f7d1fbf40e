/* Write the stored objects of one rank of an output of zarr_dask, without Python.

   zarr_dask.Writer.create makes the output, and publishes what ranks have stored. The files are
   described in docs/reference/rank-files.md. Functions return 0 (or a pointer), and -1 (or NULL)
   where something has failed: zd_error() says what. */
#ifndef ZD_RANK_H
#define ZD_RANK_H
#include <stddef.h>

enum { ZD_CHECKSUM = 1 }; /* the arrays have the codec crc32c behind bytes */

typedef struct zd_rank zd_rank;

/* Join an output as a rank that no other running process is. */
zd_rank *zd_attach(const char *store, const char *group, int rank, int flags);

/* Number of steps of an array that this rank has stored: where it goes on after a restart. */
long zd_stored(const zd_rank *rank, const char *array);

/* Write all stored objects of this rank at one index along the steps, and their receipt.

   The objects hold the steps from first up to, but not including, last. coords has ndim numbers for
   each object, without the index; data has the elements of each, nbytes long: a whole chunk in
   C order and little-endian. A chunk that is written with a part of its steps is written again
   with more. */
int zd_write(zd_rank *rank, const char *array, long index, long first, long last, int objects,
             int ndim, const long *coords, const void *const *data, size_t nbytes);

/* Let another process be this rank. */
void zd_detach(zd_rank *rank);

const char *zd_error(void);
#endif
