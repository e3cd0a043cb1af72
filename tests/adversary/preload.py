"""Library before libc (``LD_PRELOAD``, ld.so(8)) that sets the clocks of a process, and lets its disk fail.

It is compiled here, from the C below, and is told what to do by a few numbers in a file that both map into memory, so
that a running command can be changed. Linux, with a C compiler; elsewhere the attacks are told as not tried.
"""

from __future__ import annotations

import errno
import mmap
import shutil
import struct
import subprocess
import sys
from pathlib import Path

_NUMBERS = struct.Struct("<qqiiii")
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static struct { int64_t wall_s, steady_s; int32_t sync_error, write_error, seen, unused; } off, *told = &off;
static const char *place;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("ADVERSARY_TOLD");
    place = getenv("ADVERSARY_PLACE");
    int handle = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (handle < 0) return;
    void *found = mmap(0, sizeof off, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    if (found != MAP_FAILED) told = found;
    close(handle);
}

static int64_t ahead_s(clockid_t id) {
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) return told->wall_s;
    if (id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE || id == CLOCK_BOOTTIME || id == CLOCK_MONOTONIC_RAW)
        return told->steady_s;
    return 0;
}
int clock_gettime(clockid_t id, struct timespec *at) {
    int done = syscall(SYS_clock_gettime, id, at);
    if (!done) at->tv_sec += ahead_s(id);
    return done;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* Ends of waits are given by the clocks above; the kernel knows its own. */
#define NEXT(name) static __typeof__(&name) next; if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define BACK(id) struct timespec until = *at; until.tv_sec -= ahead_s(id)
int sem_clockwait(sem_t *one, clockid_t id, const struct timespec *at) {
    NEXT(sem_clockwait); BACK(id);
    return next(one, id, &until);
}
int sem_timedwait(sem_t *one, const struct timespec *at) {
    NEXT(sem_timedwait); BACK(CLOCK_REALTIME);
    return next(one, &until);
}
int pthread_cond_clockwait(pthread_cond_t *one, pthread_mutex_t *lock, clockid_t id, const struct timespec *at) {
    NEXT(pthread_cond_clockwait); BACK(id);
    return next(one, lock, id, &until);
}
int pthread_cond_timedwait(pthread_cond_t *one, pthread_mutex_t *lock, const struct timespec *at) {
    NEXT(pthread_cond_timedwait);
    BACK(at->tv_sec > 1000000000 ? CLOCK_REALTIME : CLOCK_MONOTONIC); /* no machine runs for 31 years */
    return next(one, lock, &until);
}

static int fails(int handle, int error) {
    char link[64], path[4096];
    if (!error || !place) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    if (strncmp(path, place, strlen(place))) return 0;
    told->seen = 1;
    errno = error;
    return 1;
}
int fsync(int handle) { return fails(handle, told->sync_error) ? -1 : (int)syscall(SYS_fsync, handle); }
int fdatasync(int handle) { return fails(handle, told->sync_error) ? -1 : (int)syscall(SYS_fdatasync, handle); }
ssize_t write(int handle, const void *from, size_t size) {
    return fails(handle, told->write_error) ? -1 : (ssize_t)syscall(SYS_write, handle, from, size);
}
ssize_t pwrite(int handle, const void *from, size_t size, off_t at) {
    return fails(handle, told->write_error) ? -1 : (ssize_t)syscall(SYS_pwrite64, handle, from, size, at);
}
ssize_t pwrite64(int handle, const void *from, size_t size, off_t at) { return pwrite(handle, from, size, at); }
"""


def able() -> str:
    """Return why this machine cannot do it; empty if it can."""
    if sys.platform != "linux":
        return "only Linux has LD_PRELOAD as used here"
    return "" if shutil.which("cc") else "there is no C compiler (cc)"


class Preload:
    """Library for the commands of one folder, and what it is told."""

    def __init__(self, folder: Path, place: str = "state") -> None:
        """``place``: beginning of the paths, within the folder, whose disk may fail."""
        source, library, told = folder / "preload.c", folder / "preload.so", folder / "preload.told"
        source.write_text(_SOURCE)
        told.write_bytes(bytes(_NUMBERS.size))
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-w", "-o", library, source, "-ldl"], check=True)
        self._file = told.open("r+b")
        self._told = mmap.mmap(self._file.fileno(), _NUMBERS.size)
        self.environment = {
            "LD_PRELOAD": str(library), "ADVERSARY_TOLD": str(told), "ADVERSARY_PLACE": str(folder / place),
        }  # fmt: skip

    def tell(self, *, wall_s: int = 0, steady_s: int = 0, sync_error: str = "", write_error: str = "") -> None:
        """Set the clock of the machine, and the clocks that nobody sets, so many seconds ahead, and let ``fsync`` or
        ``write`` fail with an error, by its name.
        """
        codes = [getattr(errno, name) if name else 0 for name in (sync_error, write_error)]
        self._told[:] = _NUMBERS.pack(wall_s, steady_s, *codes, 0, 0)

    @property
    def met(self) -> bool:
        """True if the disk has failed since it was told to."""
        return bool(_NUMBERS.unpack(self._told[:])[4])
