/* What ranks in C would call: chunk files, parallel HDF5 and parallel netCDF-4. See ranks.py. */
#include <fcntl.h>
#include <hdf5.h>
#include <mpi.h>
#include <netcdf.h>
#include <netcdf_par.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* A chunk under the key that Zarr gives it, renamed when it is whole; no checksum, no receipt. */
int chunk_put(const char *folder, int step, int rank, const void *data, size_t size) {
    char path[4096], aside[4200];
    sprintf(path, "%s/%d", folder, step), mkdir(path, 0777);
    sprintf(path, "%s/%d/%d", folder, step, rank), mkdir(path, 0777);
    sprintf(aside, "%s/.tmp", path);
    sprintf(path, "%s/%d/%d/0", folder, step, rank);
    int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size || close(fd)) return -1;
    return rename(aside, path);
}

static hid_t file, set, how;
static hsize_t rows, columns;

int h5_begin(const char *path, const MPI_Comm *comm, int ranks, int r, int c, int collective) {
    rows = r, columns = c;
    hsize_t shape[] = {1000, ranks * rows, columns}, chunk[] = {1, rows, columns};
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), layout = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_fapl_mpio(access, *comm, MPI_INFO_NULL);
    H5Pset_chunk(layout, 3, chunk), H5Pset_fill_time(layout, H5D_FILL_TIME_NEVER);
    file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    hid_t space = H5Screate_simple(3, shape, NULL);
    set = H5Dcreate2(file, "u", H5T_IEEE_F32LE, space, H5P_DEFAULT, layout, H5P_DEFAULT);
    how = H5Pcreate(H5P_DATASET_XFER);
    H5Pset_dxpl_mpio(how, collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT);
    H5Sclose(space), H5Pclose(access), H5Pclose(layout);
    return set < 0;
}

int h5_put(int step, int rank, const void *data) {
    hsize_t start[] = {step, rank * rows, 0}, count[] = {1, rows, columns};
    hid_t here = H5Screate_simple(3, count, NULL), there = H5Dget_space(set);
    H5Sselect_hyperslab(there, H5S_SELECT_SET, start, NULL, count, NULL);
    int bad = H5Dwrite(set, H5T_NATIVE_FLOAT, here, there, how, data) < 0;
    H5Sclose(here), H5Sclose(there);
    return bad;
}

int h5_end(void) { return H5Dclose(set) < 0 || H5Pclose(how) < 0 || H5Fclose(file) < 0; }

static int nc, u;

int nc_begin(const char *path, const MPI_Comm *comm, int ranks, int r, int c, int collective) {
    int of[3];
    size_t chunk[] = {1, r, c};
    rows = r, columns = c;
    return nc_create_par(path, NC_NETCDF4 | NC_CLOBBER, *comm, MPI_INFO_NULL, &nc)
        || nc_def_dim(nc, "step", 1000, of) || nc_def_dim(nc, "y", ranks * rows, of + 1)
        || nc_def_dim(nc, "x", columns, of + 2) || nc_def_var(nc, "u", NC_FLOAT, 3, of, &u)
        || nc_def_var_chunking(nc, u, NC_CHUNKED, chunk) || nc_def_var_fill(nc, u, 1, NULL)
        || nc_enddef(nc) || nc_var_par_access(nc, u, collective ? NC_COLLECTIVE : NC_INDEPENDENT);
}

int nc_put(int step, int rank, const void *data) {
    size_t start[] = {step, rank * rows, 0}, count[] = {1, rows, columns};
    return nc_put_vara_float(nc, u, start, count, data);
}

int nc_end(void) { return nc_close(nc); }
