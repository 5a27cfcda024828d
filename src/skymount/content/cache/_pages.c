/* The compiled part of pages.py: stores and loads a block of whole pages, each in one call.
 *
 * Other threads run all the while. Python itself gives the interpreter up at each system call and
 * has to wait for it again, which may take longer than the disk does.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h> /* rename */
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { LEAST_PAGE = 4 << 10, LARGEST_PAGE = 64 << 10 }; /* bytes */
enum { SECTOR = 512 };                                  /* bytes, what st_blocks counts */
enum { TOUCHED = 60 }; /* seconds; a use is noted at most this often */

/* The content of a block, and the page that ends with its seal. */
typedef struct {
    void *data;
    size_t size;
    uint8_t *last;
    size_t page;
} Block;

/* --- the file ------------------------------------------------------------------------------ */

/* Returns the bytes on disk, -1 with errno, or 0 when it is not done at one go. */
static long long write_file(int fd, const Block *block) {
    const struct iovec parts[] = {{block->data, block->size}, {block->last, block->page}};
    const ssize_t size = (ssize_t)(block->size + block->page), done = writev(fd, parts, 2);
    struct stat found;
    if (done != size)
        return done < 0 ? -1 : 0;
    if (fstat(fd, &found))
        return -1;
    const long long taken = (long long)found.st_blocks * SECTOR;
    return taken < size ? size : taken; /* some file systems say it only later */
}

static long long store_file(const char *temporary, const char *path, const Block *block) {
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_DIRECT;
    const int fd = open(temporary, flags, 0600);
    if (fd < 0 && errno != EINVAL) /* such a file system makes the file all the same */
        return -1;
    long long size = fd < 0 ? -1 : write_file(fd, block);
    if (size > 0 && rename(temporary, path))
        size = -1;
    const int error = errno;
    if (size <= 0)
        unlink(temporary);
    if (fd >= 0)
        close(fd);
    errno = error;
    return size < 0 && (error == EINVAL || error == EINTR) ? 0 : size;
}

/* Returns whether a file is one of the user's own, with so many bytes, and they are here. */
static int read_file(int fd, const Block *block, int touch) {
    const struct iovec parts[] = {{block->data, block->size}, {block->last, block->page}};
    const ssize_t size = (ssize_t)(block->size + block->page);
    struct stat found;
    if (fstat(fd, &found) || !S_ISREG(found.st_mode) || found.st_uid != geteuid() ||
        found.st_size != size || preadv(fd, parts, 2, 0) != size)
        return 0;
    const time_t age = time(NULL) - found.st_mtime;
    if (touch && (age > TOUCHED || age < -TOUCHED))
        futimens(fd, NULL); /* it can be read all the same if not */
    return 1;
}

/* The same, or -1 when there is no file. */
static int load_file(const char *path, const Block *block, int touch) {
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_DIRECT);
    if (fd < 0)
        return errno == ENOENT ? -1 : 0;
    const int fits = read_file(fd, block, touch);
    close(fd);
    return fits;
}

/* --- the module ---------------------------------------------------------------------------- */

/* Whether a page can have that size, and a seal at its end; ValueError if not. */
static int is_page(Py_ssize_t page, Py_ssize_t seal) {
    if (page >= LEAST_PAGE && page <= LARGEST_PAGE && seal >= 0 && seal <= page)
        return 1;
    PyErr_SetString(PyExc_ValueError, "this is no page with a seal");
    return 0;
}

static PyObject *store_block(PyObject *Py_UNUSED(module), PyObject *args) {
    _Alignas(LEAST_PAGE) uint8_t last[LARGEST_PAGE];
    Py_buffer data;
    const char *temporary, *path, *seal;
    Py_ssize_t length, page;
    if (!PyArg_ParseTuple(args, "yyy*y#n:store", &temporary, &path, &data, &seal, &length, &page))
        return NULL;
    long long size = -1;
    if (is_page(page, length)) {
        const Block block = {data.buf, (size_t)data.len, last, (size_t)page};
        memset(last, 0, block.page);
        memcpy(last + page - length, seal, (size_t)length);
        Py_BEGIN_ALLOW_THREADS
        size = store_file(temporary, path, &block);
        Py_END_ALLOW_THREADS
        if (size < 0)
            PyErr_SetFromErrno(PyExc_OSError);
    }
    PyBuffer_Release(&data);
    return size < 0 ? NULL : PyLong_FromLongLong(size);
}

static PyObject *load_block(PyObject *Py_UNUSED(module), PyObject *args) {
    _Alignas(LEAST_PAGE) uint8_t last[LARGEST_PAGE];
    Py_buffer data;
    const char *path;
    Py_ssize_t length, page;
    int touch;
    if (!PyArg_ParseTuple(args, "yw*nnp:load", &path, &data, &length, &page, &touch))
        return NULL;
    PyObject *seal = NULL;
    if (is_page(page, length)) {
        const Block block = {data.buf, (size_t)data.len, last, (size_t)page};
        int found;
        Py_BEGIN_ALLOW_THREADS
        found = load_file(path, &block, touch);
        Py_END_ALLOW_THREADS
        if (found > 0)
            seal = PyBytes_FromStringAndSize((const char *)last + page - length, length);
        else
            seal = Py_NewRef(found ? Py_None : Py_False);
    }
    PyBuffer_Release(&data);
    return seal;
}

static PyMethodDef methods[] = {
    {"store", store_block, METH_VARARGS, "store(temporary, path, data, seal, page) -> int"},
    {"load", load_block, METH_VARARGS,
     "load(path, data, seal_size, page, touch) -> bytes | False | None"},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_pages", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__pages(void) {
    return PyModuleDef_Init(&definition);
}
