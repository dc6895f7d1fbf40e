/* See zd_rank.h. */
#define _GNU_SOURCE
#include "zd_rank.h"
#include "crc32c.h"
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ARRAYS = 256, PATHS = 4096 };

struct zd_rank {
    char data[PATHS], log[PATHS], rewinds[PATHS];
    int fd, flags, arrays;
    long restarts;
    off_t size, rewound; /* bytes in whole lines of the file of this rank, and of `rewinds` */
    struct { char name[256]; long stored; } array[ARRAYS];
};

static char message[2 * PATHS];
const char *zd_error(void) { return message; }
static int failed(const char *path, const char *why) {
    snprintf(message, sizeof message, "%s: %s", path, why ? why : strerror(errno));
    return -1;
}

/* The bytes of a file and a zero, to be freed. */
static char *whole(const char *path, size_t *size) {
    struct stat found;
    int fd = open(path, O_RDONLY);
    char *text = fd < 0 || fstat(fd, &found) ? NULL : malloc(found.st_size + 1);
    ssize_t got = text ? read(fd, text, found.st_size) : -1;
    if (got >= 0) text[got] = 0, *size = got;
    else free(text), text = NULL, failed(path, NULL);
    if (fd >= 0) close(fd);
    return text;
}

static int put(int fd, const void *bytes, size_t size) {
    for (ssize_t done; size; bytes = (const char *)bytes + done, size -= done)
        if ((done = write(fd, bytes, size)) < 0) return -1;
    return 0;
}

/* Append a line: the CRC-32C of a JSON object, a space and the object. */
static int append(zd_rank *r, const char *json) {
    char *line;
    int length = asprintf(&line, "%08x %s\n", crc32c(0, json, strlen(json)), json);
    int bad = ftruncate(r->fd, r->size) || put(r->fd, line, length);
    /* network file systems show to other hosts what was written before a lock is given up */
    bad = bad || flock(r->fd, LOCK_UN) || flock(r->fd, LOCK_EX | LOCK_NB);
    free(line);
    r->size += bad ? 0 : length;
    return bad ? failed(r->log, NULL) : 0;
}

static long *stored(zd_rank *r, const char *name) {
    for (int n = 0; n < r->arrays; n++)
        if (!strcmp(r->array[n].name, name)) return &r->array[n].stored;
    if (r->arrays == ARRAYS || strlen(name) > 255) return NULL;
    strcpy(r->array[r->arrays].name, name);
    return &r->array[r->arrays++].stored;
}

long zd_stored(const zd_rank *r, const char *name) {
    long *found = stored((zd_rank *)r, name);
    return found ? *found : -1;
}

/* Read what this rank has stored; or the restarts, and take part in those that it does not know. */
static int catch_up(zd_rank *r, const char *path, int restarts) {
    long index, start, stop, number;
    size_t size;
    char name[256], json[96], *text = whole(path, &size), *at = text, *end;
    int bad = !text;
    for (; !bad && (end = strchr(at, '\n')); at = end + 1) {
        if (end - at < 9 || strtoul(at, NULL, 16) != crc32c(0, at + 9, end - at - 9))
            bad = failed(path, "has a damaged line: create the output anew");
        else if (sscanf(at + 9, "{\"array\":\"%255[^\"]\",\"index\":%ld,\"steps\":[%ld,%ld]", name,
                        &index, &start, &stop) == 4) {
            long *have = stored(r, name);
            if (have && stop > *have) *have = stop;
        } else if (sscanf(at + 9, "{\"rewind\":%ld,\"from_step\":%ld", &number, &start) == 2
                   && number > r->restarts) {
            for (int n = 0; n < r->arrays; n++)
                if (r->array[n].stored > start) r->array[n].stored = start;
            snprintf(json, sizeof json, "{\"rewind\":%ld,\"from_step\":%ld}", number, start);
            bad = restarts && append(r, json);
            r->restarts = number;
        }
        *(restarts ? &r->rewound : &r->size) += end + 1 - at;
    }
    free(text);
    return bad;
}

zd_rank *zd_attach(const char *store, const char *group, int rank, int flags) {
    zd_rank *r = calloc(1, sizeof *r);
    char folder[PATHS / 2], path[PATHS], run[17];
    size_t size;
    const char *slash = *group ? "/" : "";
    snprintf(r->data, sizeof r->data, "%s%s%s", store, slash, group);
    snprintf(folder, sizeof folder, "%s.zarr-dask%s%s/__output", store, slash, group);
    snprintf(path, sizeof path, "%s/output.json", folder);
    r->fd = -1, r->flags = flags;
    char *text = whole(path, &size), *at = text ? strstr(text, "\"run_id\": \"") : NULL;
    int bad = !at || sscanf(at + 11, "%16[0-9a-f]", run) != 1;
    if (text && bad) failed(path, "names no run");
    free(text), text = NULL;
    if (!bad) {
        snprintf(r->log, sizeof r->log, "%s/%s/rank-%d", folder, run, rank);
        snprintf(path, sizeof path, "%s/%s/held-rank-%d", folder, run, rank);
        snprintf(r->rewinds, sizeof r->rewinds, "%s/%s/rewinds", folder, run);
        r->fd = open(r->log, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        bad = r->fd < 0 ? failed(r->log, NULL)
            : flock(r->fd, LOCK_EX | LOCK_NB) ? failed(r->log, "another process is this rank")
            : access(path, F_OK) || ((text = whole(path, &size)) && strstr(text, "\"locked\": true"))
            ? 0 : failed(path, "another process is this rank; if it is gone, remove the file");
        free(text);
    }
    if (!bad && !catch_up(r, r->log, 0) && !catch_up(r, r->rewinds, 1)) return r;
    zd_detach(r);
    return NULL;
}

/* Write a file under another name, then give it its own: readers see all of it or nothing. */
static int replace(zd_rank *r, char *path, const void *data, size_t size, uint32_t *sum) {
    char aside[PATHS + 64], end[4];
    for (char *at = path + strlen(r->data) + 1; (at = strchr(at, '/')); *at++ = '/')
        if (*at = 0, mkdir(path, 0777) && errno != EEXIST) return failed(path, NULL);
    snprintf(aside, sizeof aside, "%.*s.zarr-dask-%016lx.tmp", (int)(strrchr(path, '/') + 1 - path),
             path, ((unsigned long)getpid() << 32) ^ (unsigned long)time(NULL));
    uint32_t crc = crc32c(0, data, size);
    for (int n = 0; n < 4; n++) end[n] = crc >> 8 * n;
    int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    int bad = fd < 0 || put(fd, data, size) || (r->flags & ZD_CHECKSUM && put(fd, end, 4));
    bad = (fd >= 0 && close(fd)) || bad || rename(aside, path);
    *sum = r->flags & ZD_CHECKSUM ? crc32c(crc, end, 4) : crc;
    return bad ? unlink(aside), failed(path, NULL) : 0;
}

int zd_write(zd_rank *r, const char *array, long index, long first, long last, int objects,
             int ndim, const long *coords, const void *const *data, size_t nbytes) {
    struct stat now;
    long *have = stored(r, array);
    if (!have) return failed(array, "is one array too many, or has too long a name");
    if (stat(r->rewinds, &now) || now.st_size != r->rewound)
        return failed(r->log, "counts no more: the output ended or began anew; attach again");
    char *json = NULL, path[PATHS];
    size_t length;
    FILE *out = open_memstream(&json, &length);
    int bad = 0;
    fprintf(out, "{\"array\":\"%s\",\"index\":%ld,\"steps\":[%ld,%ld],\"objects\":[", array, index,
            first, last);
    for (int n = 0; n < objects && !bad; n++, coords += ndim) {
        uint32_t sum = 0;
        int at = snprintf(path, sizeof path, "%s/%s/c/%ld", r->data, array, index);
        fprintf(out, n ? ",[[" : "[[");
        for (int d = 0; d < ndim && at < PATHS - 32; d++) {
            at += sprintf(path + at, "/%ld", coords[d]);
            fprintf(out, d ? ",%ld" : "%ld", coords[d]);
        }
        bad = replace(r, path, data[n], nbytes, &sum);
        fprintf(out, "],%zu,%u]", nbytes + (r->flags & ZD_CHECKSUM ? 4 : 0), sum);
    }
    fprintf(out, "]}"), fclose(out);
    bad = bad || append(r, json);
    free(json);
    if (!bad && last > *have) *have = last;
    return bad ? -1 : 0;
}

void zd_detach(zd_rank *r) {
    if (r->fd >= 0) close(r->fd);
    free(r);
}
