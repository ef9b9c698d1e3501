/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What loads and saves have in common: the handle, what it needs to stay alive, and how it ends.
 *
 * Python's object of an operation may go before the operation is over. Then the operation stays in the cache's list as an orphan, and
 * keeps the pages where they are, until a later call finds it over.
 */
#ifndef TN_PYTHON_OP_H
#define TN_PYTHON_OP_H

#include "binding.h"

/**
 * struct tn_py_op - a load or a save that was begun
 * @link:      in the cache's list, until it is over
 * @cache:     NULL: over. Not held: the pool holds it
 * @load, @save: the handle; the other is NULL
 * @n:         blocks
 * @given:     saves: bitmap of the layers that were given
 * @ngiven:    how many
 * @outcome:   saves: enum tn_saved of each block
 * @ending:    a thread that closes the cache waits for its end
 * @events:    saves: those that its layers wait for; a list, or NULL
 * @good:      loads: what the last wait said
 */
struct tn_py_op {
	struct tn_py_link link;
	struct tn_py_cache *cache;
	struct tn_py_space *space;
	struct tn_py_pool *pool;
	struct tn_load *load;
	struct tn_save *save;
	size_t n;
	uint32_t layers;
	uint32_t ngiven;
	uint64_t tag;
	bool committed, aborted, orphan, ending;
	uint8_t *given;
	uint8_t *outcome;
	PyObject *events;
	int good;
	struct tn_save_result result;
};

/** struct tn_py_handle - tenuto.Load, tenuto.Save */
struct tn_py_handle {
	PyObject_HEAD
	struct tn_py_op *op;
};

/**
 * tn_py_op_new - what a load or save needs, checked; not begun
 * @keys:  to be given back with PyBuffer_Release
 * @pages: to be given back with PyMem_Free
 *
 * Return: NULL with an exception.
 */
struct tn_py_op *tn_py_op_new(PyObject *args, Py_buffer *keys, uint32_t **pages);
/** tn_py_op_begun - it is in the cache's list from now on */
void tn_py_op_begun(struct tn_py_op *op);
/** tn_py_op_over - the C handle is gone: nothing is kept alive any more */
void tn_py_op_over(struct tn_py_op *op);
void tn_py_op_free(struct tn_py_op *op);
/** tn_py_op_drop - Python's object goes: end it at once, or leave an orphan */
void tn_py_op_drop(struct tn_py_op *op);
/** tn_py_op_enter - the operation of a handle, for a call without the GIL; NULL with an exception */
struct tn_py_op *tn_py_op_enter(PyObject *self);
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
/** tn_py_ops_end - end all. Return: 0, or -EBUSY at the deadline */
int tn_py_ops_end(struct tn_py_cache *cache, uint64_t deadline_ns);

int tn_py_handle_traverse(PyObject *self, visitproc visit, void *arg);
void tn_py_handle_dealloc(PyObject *self);
PyObject *tn_py_handle_blocks(PyObject *self, void *arg);
PyObject *tn_py_handle_tag(PyObject *self, void *arg);
PyObject *tn_py_handle_ended(PyObject *self, void *arg);

extern PyType_Spec tn_py_load_spec, tn_py_save_spec;
int tn_py_save_add(PyObject *module);

#endif
