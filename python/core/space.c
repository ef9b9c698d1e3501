/* SPDX-License-Identifier: Apache-2.0 */
/* tenuto.Space: the blocks of one tenant, model and shard. */
#include <errno.h>

#include <string.h>

#include <tenuto/slack.h>

#include "names.h"
#include "op.h"

struct identity {
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_quota quota;
	bool has_quota;
};

static const struct tn_py_field id_fields[] = {
	{"tenant", TN_PY_TEXT, offsetof(struct tn_identity, tenant)},
	{"revision", TN_PY_TEXT, offsetof(struct tn_identity, revision)},
	{"kv_dtype", TN_PY_TEXT, offsetof(struct tn_identity, kv_dtype)},
	{"rotary", TN_PY_TEXT, offsetof(struct tn_identity, rotary)},
	{"hash_algorithm", TN_PY_TEXT, offsetof(struct tn_identity, hash_algorithm)},
	{"hash_seed", TN_PY_U64, offsetof(struct tn_identity, hash_seed)},
	{NULL, 0, 0},
};

static const struct tn_py_field shard_fields[] = {
	{"tp_rank", TN_PY_U32, offsetof(struct tn_shard, tp_rank)},
	{"tp_size", TN_PY_U32, offsetof(struct tn_shard, tp_size)},
	{"pp_rank", TN_PY_U32, offsetof(struct tn_shard, pp_rank)},
	{"pp_size", TN_PY_U32, offsetof(struct tn_shard, pp_size)},
	{"group", TN_PY_U32, offsetof(struct tn_shard, group)},
	{"match_rule", TN_PY_U32, offsetof(struct tn_shard, match_rule)},
	{"window_tokens", TN_PY_U32, offsetof(struct tn_shard, window_tokens)},
	{"head_group", TN_PY_U32, offsetof(struct tn_shard, head_group)},
	{"head_groups", TN_PY_U32, offsetof(struct tn_shard, head_groups)},
	{NULL, 0, 0},
};

/* 16 bytes, or NULL: zeros. */
static bool revision_from(PyObject *from, unsigned char *out)
{
	char *bytes;
	Py_ssize_t n;

	if (!from)
		return true;
	if (PyBytes_AsStringAndSize(from, &bytes, &n))
		return false;
	if (n != sizeof(((struct tn_identity *)0)->reset_revision)) {
		PyErr_Format(PyExc_ValueError, "a reset's revision has 16 bytes, not %zd", n);
		return false;
	}
	memcpy(out, bytes, (size_t)n);
	return true;
}

static bool identity_from(PyObject *kw, struct identity *out)
{
	PyObject *quota = kw ? PyDict_GetItemString(kw, "quota") : NULL; /* borrowed */
	PyObject *reset = kw ? PyDict_GetItemString(kw, "reset_revision") : NULL;
	Py_ssize_t known = (quota != NULL) + (reset != NULL);

	tn_identity_init(&out->id);
	tn_shard_init(&out->shard);
	out->has_quota = quota && quota != Py_None;
	if (!revision_from(reset, out->id.reset_revision) || tn_py_quota(quota, &out->quota) || tn_py_fields(kw, id_fields, &out->id, &known) || tn_py_fields(kw, shard_fields, &out->shard, &known))
		return false;
	if (!kw || known == PyDict_Size(kw))
		return true;
	PyErr_SetString(PyExc_TypeError, "a space takes tenant, revision, kv_dtype, rotary, hash_algorithm, hash_seed, reset_revision, tp_rank, tp_size, pp_rank, "
					 "pp_size, group, match_rule, window_tokens, head_group, head_groups and quota");
	return false;
}

static uint32_t window_of(const struct tn_shard *shard, const struct tn_geometry *g)
{
	uint64_t tokens = tn_geometry_block_tokens(g);

	if (shard->match_rule == TN_MATCH_EXACT)
		return 1;
	return shard->match_rule == TN_MATCH_WINDOW ? (uint32_t)((shard->window_tokens + tokens - 1) / tokens) : 0;
}

static void give_back(struct tn_py_cache *cache, struct tn_space *s)
{
	if (s && tn_py_enter_to_end(cache))
		TN_PY_CALL(cache, tn_space_close(s));
}

/* With its cache, model and identity: a handle, NULL with an exception. What the space has is still what it was. */
static struct tn_space *space_open(struct tn_py_space *self, const unsigned char *reset)
{
	struct tn_space *s = NULL;
	struct identity i;
	int rc = -1;

	if (!identity_from(self->identity, &i))
		return NULL;
	i.id.model = PyUnicode_AsUTF8AndSize(self->model, NULL);
	if (reset)
		memcpy(i.id.reset_revision, reset, sizeof(i.id.reset_revision));
	if (!i.id.model || !tn_py_enter(self->cache))
		return NULL;
	TN_PY_CALL(self->cache, rc = tn_space_open(self->cache->c, &i.id, &i.shard, &self->geometry, i.has_quota ? &i.quota : NULL, &s));
	if (rc) {
		tn_py_raise(rc);
		return NULL;
	}
	self->window = window_of(&i.shard, &self->geometry);
	return s;
}

/* The space has this handle (NULL: it is closed) from now on. Return: the one that it had, which is the caller's. */
static struct tn_space *swap(struct tn_py_space *self, struct tn_space *s)
{
	struct tn_space *had = self->s;

	self->s = s;
	tn_py_link_remove(&self->link);
	if (!s)
		return had;
	tn_py_link_add(&self->cache->children[TN_PY_SPACES], &self->link);
	self->most = tn_space_op_blocks(s);
	self->most = self->most ? self->most : 1;
	return had;
}

static PyObject *space_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	struct tn_py_cache *cache;
	struct tn_py_space *self;
	struct tn_space *s;
	PyObject *geometry;
	const char *model;

	if (!PyArg_ParseTuple(args, "O!sO!;a Cache, a model and a Geometry are wanted", tn_py_cache_type, &cache, &model, tn_py_geometry_type, &geometry))
		return NULL;
	self = tn_py_new(type);
	if (!self)
		return NULL;
	tn_py_link_init(&self->link);
	self->geometry = ((struct tn_py_geometry *)geometry)->g;
	self->cache = (struct tn_py_cache *)TN_PY_REF(cache);
	self->model = Py_NewRef(PyTuple_GetItem(args, 1));
	self->identity = kw ? PyDict_Copy(kw) : PyDict_New();
	s = self->identity ? space_open(self, NULL) : NULL;
	if (!s) {
		Py_DECREF((PyObject *)self);
		return NULL;
	}
	swap(self, s);
	return (PyObject *)self;
}

void tn_py_space_close(struct tn_py_space *space)
{
	give_back(space->cache, swap(space, NULL));
}

static void space_dealloc(PyObject *self)
{
	struct tn_py_space *space = (struct tn_py_space *)self;

	PyObject_GC_UnTrack(self);
	if (space->cache)
		tn_py_space_close(space);
	Py_XDECREF((PyObject *)space->cache);
	Py_XDECREF(space->model);
	Py_XDECREF(space->identity);
	tn_py_free(self);
}

static int space_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct tn_py_space *)self)->cache);
	Py_VISIT(((struct tn_py_space *)self)->identity);
	return 0;
}

/* The space of a call, entered; NULL with an exception. */
struct tn_py_space *tn_py_space_enter(PyObject *self)
{
	struct tn_py_space *space = (struct tn_py_space *)self;

	if (space->s)
		return tn_py_enter(space->cache) ? space : NULL;
	tn_py_raise_text(-EBADF, "the space was closed");
	return NULL;
}

/* ---- keys ------------------------------------------------------------------------------------------------------------- */

static PyObject *space_keys(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"tokens", "extra", NULL};
	struct tn_py_space *space = (struct tn_py_space *)self;
	PyObject *from, *out = NULL;
	Py_buffer extra = {0};
	uint32_t *tokens;
	size_t n, max;
	long rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "O|y*", names, &from, &extra))
		return NULL;
	tokens = tn_py_u32s(from, "tokens", &n);
	max = tokens ? n / tn_geometry_block_tokens(&space->geometry) : 0;
	if (tokens)
		out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)max * TN_PY_KEY_BYTES);
	if (out && tn_py_space_enter(self)) {
		struct tn_key *keys = (struct tn_key *)(void *)PyBytes_AsString(out);

		TN_PY_CALL(space->cache, rc = tn_keys_from_tokens(space->s, tokens, n, extra.buf, (size_t)extra.len, keys, max));
		if (rc < 0)
			tn_py_raise(rc);
	}
	PyMem_Free(tokens);
	if (extra.obj)
		PyBuffer_Release(&extra);
	if (PyErr_Occurred())
		Py_CLEAR(out);
	return out;
}

static PyObject *space_keys_from_hashes(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"hashes", "hash_bytes", NULL};
	struct tn_py_space *space = (struct tn_py_space *)self;
	Py_ssize_t hash_bytes = 32, n;
	PyObject *out = NULL;
	Py_buffer hashes;
	long rc = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "y*|n", names, &hashes, &hash_bytes))
		return NULL;
	if (hash_bytes < 16 || hash_bytes > 32 || hashes.len % hash_bytes) {
		PyErr_Format(PyExc_ValueError, "%zd bytes are no whole number of hashes of %zd bytes (16 to 32)", hashes.len, hash_bytes);
	} else {
		n = hashes.len / hash_bytes;
		out = PyBytes_FromStringAndSize(NULL, n / space->geometry.pages_per_block * TN_PY_KEY_BYTES);
		if (out && tn_py_space_enter(self)) {
			struct tn_key *keys = (struct tn_key *)(void *)PyBytes_AsString(out);

			TN_PY_CALL(space->cache, rc = tn_keys_from_hashes(space->s, hashes.buf, (size_t)hash_bytes, (size_t)n, keys,
									  (size_t)n / space->geometry.pages_per_block));
			if (rc < 0)
				tn_py_raise(rc);
		}
	}
	PyBuffer_Release(&hashes);
	if (PyErr_Occurred())
		Py_CLEAR(out);
	return out;
}

/* ---- the slack table ---------------------------------------------------------------------------------------------------- */

/* The text of a table: empty if it knows nothing. NULL with an exception. */
static PyObject *slack_text(const struct tn_slack *table)
{
	bool known = tn_slack_window(table, 1, 0, 0) != 0;
	long n = known ? tn_slack_print(table, NULL, 0) : 0;
	PyObject *out;
	char *text;

	if (n < 0)
		return tn_py_raise(n);
	text = PyMem_Malloc((size_t)n + 1);
	if (!text)
		return PyErr_NoMemory();
	if (known)
		tn_slack_print(table, text, (size_t)n + 1);
	out = PyUnicode_DecodeUTF8(text, n, "surrogateescape");
	PyMem_Free(text);
	return out;
}

static PyObject *get_slack(PyObject *self)
{
	struct tn_py_space *space = tn_py_space_enter(self);
	struct tn_slack *table = NULL;
	PyObject *out;
	int rc;

	if (!space)
		return NULL;
	TN_PY_CALL(space->cache, rc = tn_space_slack_copy(space->s, &table));
	if (rc)
		return tn_py_raise(rc);
	out = slack_text(table);
	tn_slack_destroy(table);
	return out;
}

/* Of a text that is no table: a ValueError, whatever the reason. */
static struct tn_slack *slack_parse(PyObject *text)
{
	struct tn_slack *table = NULL;
	PyObject *bytes;
	int rc = -EINVAL;

	if (!PyUnicode_Check(text)) {
		PyErr_Format(PyExc_TypeError, "the text of a slack table is wanted, not %R", Py_TYPE(text));
		return NULL;
	}
	bytes = PyUnicode_AsEncodedString(text, "utf-8", "surrogateescape");
	if (bytes) {
		rc = tn_slack_parse(PyBytes_AsString(bytes), (size_t)PyBytes_Size(bytes), &table);
		Py_DECREF(bytes);
		if (rc)
			tn_py_raise_text(rc == -ENOMEM ? rc : -EINVAL, tn_error_last()->text);
	}
	return table;
}

static PyObject *check_slack(PyObject *none, PyObject *text)
{
	struct tn_slack *table = slack_parse(text);

	if (!table)
		return NULL;
	tn_slack_destroy(table);
	return Py_NewRef(Py_None);
}

static PyObject *space_slack(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"table", NULL};
	PyObject *text = Py_None;
	struct tn_py_space *space;
	struct tn_slack *table;
	int rc = -1;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|O", names, &text))
		return NULL;
	if (text == Py_None)
		return get_slack(self);
	table = slack_parse(text);
	if (!table)
		return NULL;
	space = tn_py_space_enter(self);
	if (space) {
		TN_PY_CALL(space->cache, rc = tn_space_slack(space->s, table));
		if (rc)
			tn_py_raise(rc);
	}
	tn_slack_destroy(table);
	return rc ? NULL : Py_NewRef(Py_None);
}

/* ---- other calls ---------------------------------------------------------------------------------------------------------- */

/* In parts of what one call takes. What is not looked for any more, because too much is under way, does not count. */
static long prefetch(const struct tn_py_space *space, const struct tn_key *keys, size_t n, uint64_t deadline_ns)
{
	size_t at = 0, want;
	int rc;

	do {
		want = n - at < space->most ? n - at : space->most;
		rc = tn_prefetch(space->s, keys + at, want, deadline_ns);
		at += rc > 0 ? (size_t)rc : 0;
	} while (rc > 0 && at < n);
	return rc < 0 && at == 0 ? rc : (long)at;
}

static PyObject *space_prefetch(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"keys", "timeout", NULL};
	PyObject *packed, *timeout = Py_None;
	struct tn_py_space *space;
	uint64_t deadline_ns;
	Py_buffer keys;
	long rc = -1;
	size_t n;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "O|O", names, &packed, &timeout) || tn_py_deadline(timeout, &deadline_ns) ||
	    tn_py_keys(packed, &keys, &n))
		return NULL;
	space = tn_py_space_enter(self);
	if (space) {
		TN_PY_CALL(space->cache, rc = prefetch(space, keys.buf, n, deadline_ns));
		if (rc < 0)
			tn_py_raise(rc);
	}
	PyBuffer_Release(&keys);
	return PyErr_Occurred() ? NULL : PyLong_FromLong(rc);
}

static PyObject *space_hint(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"kind", "keys", "seconds", NULL};
	static const char *const kinds[] = {"prefetch", "pin", "demote"};
	struct tn_py_space *space;
	const char *kind;
	double seconds = 0;
	PyObject *packed;
	Py_buffer keys;
	size_t n, k = 0;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "sO|d", names, &kind, &packed, &seconds) || tn_py_keys(packed, &keys, &n))
		return NULL;
	while (k < 3 && strcmp(kind, kinds[k]) != 0)
		k++;
	space = tn_py_space_enter(self);
	if (space) {
		uint64_t ttl_ns = seconds > 0 && seconds < 1e6 ? (uint64_t)(seconds * 1e9) : 0;

		TN_PY_CALL(space->cache, rc = tn_hint(space->s, (enum tn_hint_kind)(k + 1), keys.buf, n, ttl_ns));
		if (rc)
			tn_py_raise(rc);
	}
	PyBuffer_Release(&keys);
	return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *space_drop_blocks(PyObject *self, PyObject *packed)
{
	struct tn_py_space *space;
	Py_buffer keys;
	size_t n;
	int rc = -1;

	if (tn_py_keys(packed, &keys, &n))
		return NULL;
	space = tn_py_space_enter(self);
	if (space) {
		TN_PY_CALL(space->cache, rc = tn_drop(space->s, keys.buf, n));
		if (rc < 0)
			tn_py_raise(rc);
	}
	PyBuffer_Release(&keys);
	return PyErr_Occurred() ? NULL : PyLong_FromLong(rc);
}

static PyObject *space_drop(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"timeout", NULL};
	PyObject *timeout = Py_None;
	struct tn_py_space *space;
	uint64_t deadline_ns;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|O", names, &timeout) || tn_py_deadline(timeout, &deadline_ns))
		return NULL;
	space = tn_py_space_enter(self);
	if (!space)
		return NULL;
	TN_PY_CALL(space->cache, rc = tn_space_drop(space->s, deadline_ns));
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *space_reset(PyObject *self, PyObject *revision)
{
	struct tn_py_space *space = (struct tn_py_space *)self;
	unsigned char reset[sizeof(((struct tn_identity *)0)->reset_revision)];
	struct tn_space *s, *had;

	if (!revision_from(revision, reset))
		return NULL;
	s = space_open(space, reset);
	had = swap(space, s); /* calls beside this have either */
	if (tn_py_enter_to_end(space->cache)) {
		tn_py_ops_reset(space);
		tn_py_leave(space->cache);
	}
	give_back(space->cache, had);
	return s ? Py_NewRef(Py_None) : NULL;
}

static PyObject *space_close(PyObject *self, PyObject *nothing)
{
	tn_py_space_close((struct tn_py_space *)self);
	return Py_NewRef(Py_None);
}

static PyObject *get_geometry(PyObject *self, void *arg)
{
	return tn_py_geometry(&((struct tn_py_space *)self)->geometry);
}

static PyObject *get_cache(PyObject *self, void *arg)
{
	return TN_PY_REF(((struct tn_py_space *)self)->cache);
}

static PyObject *get_index(PyObject *self, void *arg)
{
	const struct tn_py_space *space = (struct tn_py_space *)self;

	return space->s ? PyLong_FromUnsignedLong(tn_space_index(space->s)) : tn_py_raise_text(-EBADF, "the space was closed");
}

static PyGetSetDef getset[] = {
	{"geometry", get_geometry, NULL, "of its blocks", NULL},
	{"cache", get_cache, NULL, "that it is of", NULL},
	{"index", get_index, NULL, "the number by which block events name it", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void))function, METH_VARARGS | METH_KEYWORDS

static PyMethodDef methods[] = {
	{"keys", WITH_KEYWORDS(space_keys),
	 "keys(tokens, extra=b\"\")\n--\n\nPacked keys of a prompt's whole blocks: bytes, KEY_BYTES per block.\n\n"
	 "tokens: an integer array of one dimension, or a sequence; extra: bytes of what else the KV depends on (LoRA, images, a cache salt)."},
	{"keys_from_hashes", WITH_KEYWORDS(space_keys_from_hashes),
	 "keys_from_hashes(hashes, hash_bytes=32)\n--\n\nPacked keys from an engine's own chained page hashes, 16 to 32 bytes each, one after the other.\n\n"
	 "The last page's hash names a block; a trailing part of a block gets no key. Raises ValueError."},
	{"match", WITH_KEYWORDS(tn_py_space_match),
	 "match(keys, pin=False, tiers=False)\n--\n\nThe longest prefix of packed keys that can be loaded: a Match.\n\n"
	 "pin: take a lease, which keeps the blocks until Match.unpin; tiers: also where each block lies. Raises Again (all leases are taken), Closed."},
	{"plan", WITH_KEYWORDS(tn_py_space_plan),
	 "plan(match, input_tokens)\n--\n\nHow much of a match to restore, and how much to compute again: a dict with restore_blocks, recompute_blocks,\n"
	 "ttft_ns, restore_all_ttft_ns and recompute_all_ttft_ns (estimates in ns; 0: not known)."},
	{"check_slack", check_slack, METH_O | METH_STATIC,
	 "check_slack(text)\n--\n\nWhether a text is that of a slack-table file, without a space to give it to. Raises ValueError with the line and what is wrong."},
	{"slack", WITH_KEYWORDS(space_slack),
	 "slack(table=None)\n--\n\nHow long the engine computes on each layer. Without an argument: the table with all that was learned, as the text of a\n"
	 "slack-table file (docs/model.md); \"\" if nothing is known. With the text of such a file: the space has that table from now on.\n\n"
	 "Of an attached cache this is the owner's table, which all processes with this space share. Raises InvalidValue (the text's line and what is wrong\n"
	 "with it, another number of layers, another model), Error (EROFS: a session that only reads), Closed, OwnerGone."},
	{"observe", WITH_KEYWORDS(tn_py_space_observe),
	 "observe(input_tokens, prefix_tokens, layer, ns)\n--\n\nThe engine has computed a layer of so many tokens behind a prefix: corrects what the space knows of its compute.\n\n"
	 "For prompts that are computed as a whole; the times between two Load.wait of a load with input_tokens count without. Raises InvalidValue."},
	{"prefetch", WITH_KEYWORDS(space_prefetch),
	 "prefetch(keys, timeout=None)\n--\n\nBring blocks to host memory before they are asked for. Returns how many will be looked for."},
	{"name_blocks", WITH_KEYWORDS(tn_py_space_name_blocks),
	 "name_blocks(keys, hashes, hash_bytes, block_tokens, parent=None, token_ids=None, group=0)\n--\n\nWhat the engine calls consecutive blocks of a prompt, for\n"
	 "who follows the cache's published events. hashes: hash_bytes each; parent: the one before the first; token_ids: 4 bytes per token.\n"
	 "Whether the cache keeps names: without a publisher it does not."},
	{"hint", WITH_KEYWORDS(space_hint),
	 "hint(kind, keys, seconds=0)\n--\n\nWhat is expected of blocks: \"prefetch\" or \"pin\" for some seconds, or \"demote\". Never waited for, and the same\n"
	 "whether they are there or not. Raises Again (the tenant has too many hints under way), InvalidValue."},
	{"drop_blocks", space_drop_blocks, METH_O, "drop_blocks(keys)\n--\n\nForget single blocks. Returns how many were found."},
	{"drop", WITH_KEYWORDS(space_drop),
	 "drop(timeout=None)\n--\n\nForget all blocks of the space, durably. Raises Busy (loads or saves under way at the end of timeout), Timeout, Error."},
	{"reset", space_reset, METH_O,
	 "reset(revision)\n--\n\nThe engine's weights are others from now on: nothing that was computed before is found any more.\n\n"
	 "revision: 16 bytes, the same in all ranks and nodes that share blocks, and new (os.urandom(16)) for each change of weights. Zeros: the weights\n"
	 "of a space that is opened without reset_revision are back, and their blocks. Saves that are not committed are aborted, loads have no good block any more; no other\n"
	 "thread may be in a call of them. Keys are others: make them again. When it raises, the space is closed until a reset does not. A space that is\n"
	 "opened later, in any process, has the blocks of a reset with reset_revision=revision."},
	{"close", space_close, METH_NOARGS, "close()\n--\n\nThe handle goes, the blocks stay."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, (void *)"Space(cache, model, geometry, *, tenant=\"\", revision=\"\", kv_dtype=\"\", rotary=\"\", hash_algorithm=\"\", hash_seed=0,\n"
			    "      reset_revision=bytes(16), tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, group=0, match_rule=MATCH_PREFIX, window_tokens=0, head_group=0, head_groups=0, quota=None)\n--\n\n"
			    "The blocks of one tenant, model and shard; made by Cache.space."},
	{Py_tp_new, (void *)space_new},
	{Py_tp_dealloc, (void *)space_dealloc},
	{Py_tp_traverse, (void *)space_traverse},
	{Py_tp_getset, getset},
	{Py_tp_methods, methods},
	{0, NULL},
};

PyType_Spec tn_py_space_spec = {
	.name = "tenuto._core.Space",
	.basicsize = sizeof(struct tn_py_space),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
	.slots = slots,
};
