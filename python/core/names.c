/* SPDX-License-Identifier: Apache-2.0 */
/* Space.name_blocks: what an engine calls blocks of a space. */
#include <errno.h>
#include <string.h>

#include <tenuto/names.h>

#include "names.h"

struct given {
	Py_buffer keys, hashes, parent, tokens; /* obj NULL: not given */
	size_t n;
	struct tn_block_names names;
};

static bool take(PyObject *from, Py_buffer *out)
{
	return from == Py_None || PyObject_GetBuffer(from, out, PyBUF_SIMPLE) == 0;
}

/* Bytes that do not belong together are refused here: the library has no sizes of them. */
static bool fits(const struct given *g)
{
	if ((size_t)g->hashes.len != g->n * g->names.hash_bytes)
		PyErr_Format(PyExc_ValueError, "%zu keys and %zd bytes of hashes of %u bytes each", g->n, g->hashes.len, g->names.hash_bytes);
	else if (g->parent.obj && (size_t)g->parent.len != g->names.hash_bytes)
		PyErr_Format(PyExc_ValueError, "parent has %zd bytes, a hash %u", g->parent.len, g->names.hash_bytes);
	else if (g->tokens.obj && (size_t)g->tokens.len != g->n * g->names.block_tokens * sizeof(uint32_t))
		PyErr_Format(PyExc_ValueError, "%zd bytes of token ids: 4 for each of %zu * %u tokens are wanted", g->tokens.len, g->n, g->names.block_tokens);
	return !PyErr_Occurred();
}

static void release(struct given *g)
{
	Py_buffer *const all[] = {&g->keys, &g->hashes, &g->parent, &g->tokens};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i]->obj)
			PyBuffer_Release(all[i]);
}

static int give(PyObject *self, struct given *g)
{
	struct tn_py_space *space = tn_py_space_enter(self);
	int rc;

	if (!space)
		return -1;
	g->names.hashes = g->hashes.buf;
	g->names.parent = g->parent.obj ? g->parent.buf : NULL;
	g->names.token_ids = g->tokens.obj ? g->tokens.buf : NULL;
	TN_PY_CALL(space->cache, rc = tn_names_give(space->s, g->keys.buf, g->n, &g->names));
	if (rc && rc != -ENOTSUP)
		tn_py_raise(rc);
	return rc == -ENOTSUP ? 0 : rc == 0;
}

PyObject *tn_py_space_name_blocks(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"keys", "hashes", "hash_bytes", "block_tokens", "parent", "token_ids", "group", NULL};
	PyObject *keys, *hashes, *parent = Py_None, *tokens = Py_None;
	struct given g = {.names.size = sizeof(g.names)};
	int kept = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "OOII|OOI", names, &keys, &hashes, &g.names.hash_bytes, &g.names.block_tokens, &parent, &tokens, &g.names.group) ||
	    tn_py_keys(keys, &g.keys, &g.n))
		return NULL;
	if (take(hashes, &g.hashes) && take(parent, &g.parent) && take(tokens, &g.tokens) && fits(&g))
		kept = give(self, &g);
	release(&g);
	return PyErr_Occurred() ? NULL : PyBool_FromLong(kept);
}
