/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The extension module tenuto._core: Python objects over the public headers of libtenuto, and nothing more.
 *
 * Who holds whom: a child (space, memory, pool, event) holds its cache, a pool its memory, a load or save its pool and space. The cache
 * knows its children without holding them, so that closing it ends all that is left. All of these lists change under the GIL only.
 *
 * Calls that can take more than a microsecond are made without the GIL, between tn_py_enter and tn_py_leave. The count of those inside is what
 * closing a cache waits for: before it ends what is left, and again afterwards, for threads that have dropped an object meanwhile. An object that is
 * about to be freed is in no list once the GIL is let go: who closes the cache would find it there. Waits go in slices, so that a signal or a close
 * ends them.
 */
#ifndef TN_PYTHON_BINDING_H
#define TN_PYTHON_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <tenuto/tenuto.h>

/** TN_PY_REF - Py_NewRef of an object of our own types */
#define TN_PY_REF(object) Py_NewRef((PyObject *)(object))

/** Bytes of a packed key. */
#define TN_PY_KEY_BYTES ((Py_ssize_t)sizeof(struct tn_key))

/** struct tn_py_link - a place in a list of a cache; a list that is empty points to itself */
struct tn_py_link {
	struct tn_py_link *next, *prev;
};

void tn_py_link_init(struct tn_py_link *head);
void tn_py_link_add(struct tn_py_link *head, struct tn_py_link *link);
/** tn_py_link_remove - also if it is in no list */
void tn_py_link_remove(struct tn_py_link *link);

enum tn_py_child { TN_PY_CLIENTS, TN_PY_POOLS, TN_PY_MEMORIES, TN_PY_SEQUENCES, TN_PY_SPACES, TN_PY_EVENTS, TN_PY_CHILDREN };

/**
 * struct tn_py_cache - tenuto.Cache
 * @c:        NULL: closed, or never opened
 * @pid:      of the process that has opened it: in a forked child nothing is waited for
 * @inside:   calls under way without the GIL
 * @closing:  calls that begin, and waits, end with an exception
 * @stuck:    something of it can never be given back: it is not closed, and goes with the process
 * @log:      called with each log line; NULL: none
 * @publisher: of its events; NULL: none. Ends before the cache is closed
 * @children: by enum tn_py_child
 * @ops:      struct tn_py_op
 * @open:     in the list of all open caches
 */
struct tn_py_cache {
	PyObject_HEAD
	struct tn_cache *c;
	pid_t pid;
	uint32_t inside;
	bool closing;
	bool stuck;
	PyObject *log;
	struct tn_publisher *publisher;
	struct tn_py_link children[TN_PY_CHILDREN];
	struct tn_py_link ops;
	struct tn_py_link open;
};

/** struct tn_py_space - tenuto.Space; @window: blocks that its rule wants at the end of a prefix, 0: all; @most: blocks of one call */
struct tn_py_space {
	PyObject_HEAD
	struct tn_py_link link;
	struct tn_py_cache *cache;
	struct tn_space *s;
	struct tn_geometry geometry;
	uint32_t window, most;
	uint32_t resets;
	PyObject *model, *identity; /* as they were given: a reset opens the space again */
};

/** tn_py_space_enter - tn_py_enter of the space's cache; NULL with an exception: the space was closed, or its cache */
struct tn_py_space *tn_py_space_enter(PyObject *self);

/** struct tn_py_view - tenuto.View: where an array lies in memory, and what keeps it there; @device: that has the memory, -1: host memory */
struct tn_py_view {
	PyObject_HEAD
	char *pointer;
	int ndim;
	Py_ssize_t shape[16];
	Py_ssize_t strides[16]; /* bytes */
	Py_ssize_t itemsize;
	char kind; /* 'i', 'u', 'f', or '?' for anything else */
	bool readonly;
	int device;
	bool has_buffer;
	Py_buffer buffer;
	PyObject *capsule; /* of __dlpack__ */
	PyObject *owner;
	PyObject *probe; /* tells where the owner's bytes lie now */
	uint64_t probed;
};

/** struct tn_py_memory - tenuto.Memory; @views keep the bytes where they are, @ranges says which these are */
struct tn_py_memory {
	PyObject_HEAD
	struct tn_py_link link;
	struct tn_py_cache *cache;
	struct tn_memory *m;
	PyObject *views;  /* a tuple, as ranges */
	PyObject *ranges;
	const struct tn_device_driver *driver; /* of memory of a device; NULL: of the host */
};

/** struct tn_py_pool - tenuto.Pool; @left: in place of one that is gone, and could not give its pool back: the list of its cache holds it */
struct tn_py_pool {
	PyObject_HEAD
	struct tn_py_link link;
	struct tn_py_memory *memory;
	struct tn_pool *p;
	struct tn_geometry geometry;
	uint64_t npages;
	bool left;
};

/** struct tn_py_sequence - tenuto.Sequence; @seq: NULL: closed, with its cache */
struct tn_py_sequence {
	PyObject_HEAD
	struct tn_py_link link;
	struct tn_py_space *space;
	struct tn_sequence *seq;
};

struct tn_py_event {
	PyObject_HEAD
	struct tn_py_link link;
	struct tn_py_cache *cache;
	struct tn_event *e;
};

struct tn_py_geometry {
	PyObject_HEAD
	struct tn_geometry g;
};

/* module.c */
extern PyTypeObject *tn_py_cache_type, *tn_py_space_type, *tn_py_view_type, *tn_py_memory_type, *tn_py_pool_type, *tn_py_event_type,
	*tn_py_geometry_type;
/** tn_py_new - an object of a type, all of its own fields zero */
void *tn_py_new(PyTypeObject *type);
/** tn_py_free - the end of a dealloc */
void tn_py_free(void *object);

/* errors.c */
int tn_py_errors_add(PyObject *module);
/** tn_py_raise - the exception of a negative errno, with the detail of this thread's last failure. Return: NULL */
PyObject *tn_py_raise(long rc);
/** tn_py_raise_text - the same with a text of ours. Return: NULL */
PyObject *tn_py_raise_text(int rc, const char *text);

/* memory.c */
/** tn_py_open_driver - the driver of a name; may take seconds: the device's library starts. Return: false with an exception */
bool tn_py_open_driver(const char *name, const struct tn_device_driver **driver);

/* values.c */
/** tn_py_now_ns - CLOCK_MONOTONIC */
uint64_t tn_py_now_ns(void);
/** tn_py_deadline - None: never; a number: so many seconds from now. Return: 0; -1 with an exception */
int tn_py_deadline(PyObject *timeout, uint64_t *deadline_ns);
/** tn_py_keys - n packed keys. Return: 0 (give @view back with PyBuffer_Release); -1 with an exception */
int tn_py_keys(PyObject *from, Py_buffer *view, size_t *n);
/** tn_py_u32s - whole numbers from an integer array or a sequence. Return: an array of PyMem_Malloc; NULL with an exception */
uint32_t *tn_py_u32s(PyObject *from, const char *what, size_t *n);
/** tn_py_u64s - the same with 64 bits */
uint64_t *tn_py_u64s(PyObject *from, const char *what, size_t *n);
/** tn_py_quota - {"host": bytes, "disk": bytes}. Return: 0; -1 with an exception */
int tn_py_quota(PyObject *from, struct tn_quota *quota);
/** tn_py_set - dict[name] = value, and value given back. Return: 0; -1 with an exception */
int tn_py_set(PyObject *dict, const char *name, PyObject *value);

/** What a field of an options struct is. */
enum tn_py_field_kind { TN_PY_BOOL, TN_PY_I32, TN_PY_U32, TN_PY_U64, TN_PY_TEXT };

/** struct tn_py_field - a keyword argument, and the member of a struct that it sets */
struct tn_py_field {
	const char *name;
	enum tn_py_field_kind kind;
	size_t offset;
};

/**
 * tn_py_fields - set members of a struct from keyword arguments
 * @fields: until one without a name
 * @done:   how many keywords were found there
 *
 * Texts point into @keywords, which outlives them. Return: 0; -1 with an exception.
 */
int tn_py_fields(PyObject *keywords, const struct tn_py_field *fields, void *out, Py_ssize_t *done);

/* arrays.c */
PyObject *tn_py_view_of(PyObject *array, bool writable);
/** tn_py_view_moved - whether the bytes lie no longer where they lay. Return: 0 or 1; -1 with an exception */
int tn_py_view_moved(struct tn_py_view *view);
extern PyType_Spec tn_py_view_spec;

/* geometry.c, memory.c, pool.c, space.c, cache.c */
extern PyType_Spec tn_py_geometry_spec, tn_py_memory_spec, tn_py_pool_spec, tn_py_buffer_spec, tn_py_event_spec, tn_py_space_spec, tn_py_cache_spec, tn_py_head_groups_spec, tn_py_sequence_spec;
PyObject *tn_py_geometry(const struct tn_geometry *g);
PyObject *tn_py_close_all(PyObject *module, PyObject *nothing);
/**
 * tn_py_layout - where a pool's pages lie: base and strides as arrays of numbers, or (None) an order that engines use
 *
 * Return: memory that the layout needs, of PyMem_Malloc; NULL with an exception.
 */
uint64_t *tn_py_layout(const struct tn_geometry *g, PyObject *base, PyObject *strides, const struct tn_pool_shape *shape, struct tn_pool_layout *out);
/** tn_py_pool_close - Return: 0; -EBUSY, -ETIMEDOUT: it is what it was, and may be closed again */
int tn_py_pool_close(struct tn_py_pool *pool);
/** tn_py_memory_close - Return: 0; -EBUSY: a pool of it is left, and it is what it was */
int tn_py_memory_close(struct tn_py_memory *memory);
/** tn_py_memory_check - an exception if an array of it lies elsewhere by now. Return: 0, -1 */
int tn_py_memory_check(struct tn_py_memory *memory);
void tn_py_space_close(struct tn_py_space *space);
void tn_py_event_close(struct tn_py_event *event);
void tn_py_sequence_close(struct tn_py_sequence *sequence);
PyObject *tn_py_reslice(PyObject *module, PyObject *args, PyObject *kw);

/**
 * tn_py_word_driver - the driver of a pool's memory whose streams wait for words, or write them
 *
 * Return: NULL with an exception: it is host memory, or the driver's streams know no words
 */
const struct tn_device_driver *tn_py_word_driver(const struct tn_py_pool *pool);
/** tn_py_stream - a number that is a driver's stream, or an engine's own (a cudaStream_t; 0: the default one). Return: false with an exception */
bool tn_py_stream(PyObject *from, void **stream);

/** tn_py_enter - before a call: holds the cache and keeps it open; false with an exception if it is closed */
bool tn_py_enter(struct tn_py_cache *cache);
/** tn_py_enter_to_end - the same for a call that gives something back: also while the cache is being closed; false, without an exception, if it is closed */
bool tn_py_enter_to_end(struct tn_py_cache *cache);
/** tn_py_leave - after the call, with the GIL */
void tn_py_leave(struct tn_py_cache *cache);
/**
 * tn_py_slice - when a wait is to look up next; each slice is longer than the one before
 * @slices: 0 at first
 */
uint64_t tn_py_slice(uint32_t *slices, uint64_t deadline_ns);
/** tn_py_go_on - after a slice: signals, and whether somebody closes the cache. Return: 0, or -1 with an exception */
int tn_py_go_on(const struct tn_py_cache *cache);

/** TN_PY_CALL - after tn_py_enter: a call without the GIL; the cache may be gone afterwards, unless the caller holds it */
#define TN_PY_CALL(cache, expression)                         \
	do {                                                  \
		struct tn_py_cache *called = (cache);         \
		Py_BEGIN_ALLOW_THREADS;                       \
		expression;                                   \
		Py_END_ALLOW_THREADS;                         \
		tn_py_leave(called);                          \
	} while (0)

/* observe.c: functions of the module that look at a cache */
extern PyMethodDef tn_py_observe_methods[];

/* heap.c */
int tn_py_heap_add(PyObject *module);

/* match.c */
extern PyType_Spec tn_py_match_spec, tn_py_query_spec;
int tn_py_match_add(PyObject *module);
PyObject *tn_py_space_match(PyObject *self, PyObject *args, PyObject *kw);
PyObject *tn_py_space_plan(PyObject *self, PyObject *args, PyObject *kw);
PyObject *tn_py_space_observe(PyObject *self, PyObject *args, PyObject *kw);
PyObject *tn_py_match_all(PyObject *module, PyObject *args, PyObject *kw);
PyObject *tn_py_match_begin(PyObject *module, PyObject *args, PyObject *kw);

#endif
