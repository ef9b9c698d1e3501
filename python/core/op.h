/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What loads and saves have in common: the handle, what it needs to stay alive, and how it ends.
 *
 * A load or save of more blocks than one operation takes (tn_space_op_blocks) is a chain of operations, its parts, which read as one. Parts begin in
 * their order. One that finds no place (-EAGAIN) waits until a part before it has ended. If none before it is left, it has failed.
 *
 * Python's object may go before its operations are over. Then each stays in the cache's list as an orphan, and keeps the pages where they are, until a
 * later call finds it over.
 */
#ifndef TN_PYTHON_OP_H
#define TN_PYTHON_OP_H

#include "binding.h"

/**
 * struct tn_py_op - a load or a save, or a part of one
 * @link:      in the cache's list, from its beginning until it is over
 * @next:      the part behind it, or NULL
 * @cache:     NULL: over. Not held: the pool holds it
 * @load, @save: the handle; the other is NULL. Both NULL, and not over: it waits for its turn
 * @first:     blocks of the parts before it
 * @n:         blocks
 * @given:     saves: bitmap of the layers that were given; of the first part, for all
 * @ngiven:    how many
 * @outcome:   saves: enum tn_saved of each block
 * @resets:    of its space, when it was made: after another one it loads and saves nothing any more
 * @ending:    a thread that closes the cache waits for its end
 * @settled:   loads: over before the others, and good says what is there
 * @events:    saves: those that its layers wait for; a list, or NULL
 * @good:      loads: what the last wait said
 */
struct tn_py_op {
	struct tn_py_link link;
	struct tn_py_op *next;
	struct tn_py_cache *cache;
	struct tn_py_space *space;
	struct tn_py_pool *pool;
	struct tn_load *load;
	struct tn_save *save;
	size_t first, n;
	uint32_t layers;
	uint32_t ngiven;
	uint32_t resets;
	uint64_t tag;
	bool committed, aborted, orphan, ending, settled;
	uint8_t *given;
	uint8_t *outcome;
	PyObject *events;
	int good;
	struct tn_save_result result;
};

/** struct tn_py_final - a layer that was given: its bytes are final once @event has reached @value; without an event they are */
struct tn_py_final {
	bool given;
	const struct tn_event *event;
	uint64_t value;
};

/**
 * struct tn_py_request - what a load or save is about, until all of its parts have begun
 * @keys:   of all parts: what @packed has, or a copy
 * @pages:  of PyMem_Malloc
 * @packed: to be given back, unless obj is NULL
 * @parent: that the options of a save point to
 * @final:  saves: by layer, for parts that begin after layers were given; or NULL
 * @commit: saves: so are parts that begin
 * @begin:  begins a part. Without the GIL. Return: 0 or a negative errno
 */
struct tn_py_request {
	const struct tn_key *keys;
	uint32_t *pages;
	Py_buffer packed;
	union {
		struct tn_load_opts load;
		struct tn_save_opts save;
	} opts;
	struct tn_key parent;
	struct tn_py_final *final;
	bool commit;
	int (*begin)(struct tn_py_op *op, const struct tn_py_request *request);
};

/** struct tn_py_handle - tenuto.Load, tenuto.Save; @waiting: what parts that have not begun are about; NULL: there are none */
struct tn_py_handle {
	PyObject_HEAD
	struct tn_py_op *op;
	struct tn_py_request *waiting;
};

/**
 * tn_py_request_take - what a load or save needs, checked; nothing is begun
 * @request: its options and begin are set; give the rest back with tn_py_request_release
 *
 * Return: its parts; NULL with an exception.
 */
struct tn_py_op *tn_py_request_take(struct tn_py_request *request, PyObject *args, uint64_t tag);
void tn_py_request_release(struct tn_py_request *request);
/** tn_py_handle_new - begin the parts, which are given up unless it succeeds; the request is given back or kept. Return: NULL with an exception */
PyObject *tn_py_handle_new(PyTypeObject *type, struct tn_py_op *parts, struct tn_py_request *request);
/**
 * tn_py_handle_begin - begin parts that wait, as many as can, from @op on, which is the first of them
 *
 * Afterwards @op waits on (tn_py_op_waits): an earlier one must end first; or it has begun, or is over, since it never can.
 * Return: 0; -1 with an exception
 */
int tn_py_handle_begin(struct tn_py_handle *h, struct tn_py_op *op);
/** tn_py_handle_forget - parts that wait are over: nobody wants them any more */
void tn_py_handle_forget(struct tn_py_handle *h);
/** tn_py_op_waits - it has not begun yet */
bool tn_py_op_waits(const struct tn_py_op *op);
/** tn_py_op_begun - it is in the cache's list from now on */
void tn_py_op_begun(struct tn_py_op *op);
/** tn_py_op_over - the C handle is gone: nothing is kept alive any more */
void tn_py_op_over(struct tn_py_op *op);
void tn_py_op_free(struct tn_py_op *op);
/** tn_py_op_drop - Python's object goes: end it at once, or leave an orphan */
void tn_py_op_drop(struct tn_py_op *op);
/** tn_py_wait - one part of a wait, without the GIL. Return: -EBUSY or -ETIMEDOUT: not yet */
typedef int tn_py_wait(void *arg, uint64_t until_ns);
/**
 * tn_py_op_wait - a wait for an operation, in parts that look for signals and a close in between. The operation may be over afterwards
 *
 * Return: what the last part returned; with an exception if a signal or a close came.
 */
int tn_py_op_wait(struct tn_py_op *op, tn_py_wait *wait, void *arg, uint64_t deadline_ns);
/** tn_py_op_end_until - cancelled or committed before: wait for the end. Return: 0: over; -EBUSY, -ETIMEDOUT; any error of an end */
int tn_py_op_end_until(struct tn_py_op *op, uint64_t deadline_ns, uint8_t *busy);
/** tn_py_ops_reap - orphans that are over */
void tn_py_ops_reap(struct tn_py_cache *cache);
/** tn_py_ops_stop - begin the end of all: waits for them return */
void tn_py_ops_stop(struct tn_py_cache *cache);
/** tn_py_ops_reset - a space's weights are others from now on: its saves that are not committed are aborted, and its loads have failed */
void tn_py_ops_reset(struct tn_py_space *space);
/** tn_py_ops_end - end all. Return: 0, or -EBUSY at the deadline */
int tn_py_ops_end(struct tn_py_cache *cache, uint64_t deadline_ns);

/** tn_py_handle_live - the handle, unless all of it is over: then NULL with an exception that has the text */
struct tn_py_handle *tn_py_handle_live(PyObject *self, const char *text);
/** tn_py_handle_over - whether all of it is over */
bool tn_py_handle_over(const struct tn_py_handle *h);
/** tn_py_handle_reset - whether its space was reset since; parts that wait are over then */
bool tn_py_handle_reset(struct tn_py_handle *h);
int tn_py_handle_traverse(PyObject *self, visitproc visit, void *arg);
void tn_py_handle_dealloc(PyObject *self);
PyObject *tn_py_handle_blocks(PyObject *self, void *arg);
PyObject *tn_py_handle_tag(PyObject *self, void *arg);
PyObject *tn_py_handle_ended(PyObject *self, void *arg);

extern PyType_Spec tn_py_load_spec, tn_py_save_spec;
int tn_py_save_add(PyObject *module);

#endif
