/* SPDX-License-Identifier: Apache-2.0 */
/* The module tenuto._core: its types, functions and constants. One per process. */
#include <string.h>

#include "client.h"
#include "events.h"
#include "op.h"
#include "xfer.h"

PyTypeObject *tn_py_cache_type, *tn_py_space_type, *tn_py_view_type, *tn_py_memory_type, *tn_py_pool_type, *tn_py_event_type, *tn_py_geometry_type;

void *tn_py_new(PyTypeObject *type)
{
	/* A slot is a function behind a pointer to data. */
	allocfunc alloc;
	void *slot = PyType_GetSlot(type, Py_tp_alloc);

	memcpy(&alloc, &slot, sizeof(alloc));
	return alloc(type, 0);
}

void tn_py_free(void *object)
{
	PyTypeObject *type = Py_TYPE((PyObject *)object);
	freefunc release;
	void *slot = PyType_GetSlot(type, Py_tp_free);

	memcpy(&release, &slot, sizeof(release));
	release(object);
	Py_DECREF(type);
}

static PyObject *version(PyObject *module, PyObject *nothing)
{
	return PyUnicode_FromString(tn_version());
}

#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void))function, METH_VARARGS | METH_KEYWORDS

static PyMethodDef functions[] = {
	{"version", version, METH_NOARGS, "version()\n--\n\nOf the library that is running."},
	{"match_all", WITH_KEYWORDS(tn_py_match_all),
	 "match_all(spaces, keys, pin=False)\n--\n\nThe longest prefix of packed keys that every one of several spaces of one cache can load: a Match.\n\n"
	 "The spaces are those of the TP ranks and KV groups that a request needs, 1 to 64, each with its own rule. With pin one lease holds the blocks of\n"
	 "all. Raises InvalidValue (spaces that do not fit together), Again (all leases are taken), Closed."},
	{"match_begin", WITH_KEYWORDS(tn_py_match_begin),
	 "match_begin(spaces, keys, timeout=None, pin=False)\n--\n\nAs match_all, also of tiers that do not answer at once: a Query to poll.\n\n"
	 "What a tier has not answered within timeout seconds is not there."},
	{"reslice", WITH_KEYWORDS(tn_py_reslice),
	 "reslice(geometry, src_tp, dst_tp, dst_rank, sources, into)\n--\n\nOne layer of one block of src_tp shards becomes that of shard dst_rank of dst_tp.\n\n"
	 "geometry: of a source shard; sources: a buffer per source shard, by rank, of geometry.object_bytes; into: a writable buffer of\n"
	 "geometry.resliced(src_tp, dst_tp).object_bytes. Raises InvalidValue where heads would be split."},
	{"_close_all", tn_py_close_all, METH_NOARGS, "_close_all()\n--\n\nCloses every open cache, before the interpreter ends."},
	{NULL, NULL, 0, NULL},
};

static const struct {
	const char *name;
	long value;
} constants[] = {
	{"KEY_BYTES", sizeof(struct tn_key)},
	{"PLANE_K", TN_PLANE_K},
	{"PLANE_V", TN_PLANE_V},
	{"PLANE_LATENT", TN_PLANE_LATENT},
	{"PLANE_SCALE_K", TN_PLANE_SCALE_K},
	{"PLANE_SCALE_V", TN_PLANE_SCALE_V},
	{"PLANE_STATE", TN_PLANE_STATE},
	{"NHD", TN_PAGE_NHD},
	{"HND", TN_PAGE_HND},
	{"POOL_PLANES_PAGES", TN_POOL_PLANES_PAGES},
	{"POOL_PAGES_PLANES", TN_POOL_PAGES_PLANES},
	{"POOL_PLANE_REGION", TN_POOL_PLANE_REGION},
	{"POOL_CROSS_LAYER", TN_POOL_CROSS_LAYER},
	{"MATCH_PREFIX", TN_MATCH_PREFIX},
	{"MATCH_WINDOW", TN_MATCH_WINDOW},
	{"MATCH_EXACT", TN_MATCH_EXACT},
	{"TIER_NONE", TN_TIER_NONE},
	{"TIER_DEVICE", TN_TIER_DEVICE},
	{"TIER_HOST", TN_TIER_HOST},
	{"TIER_DISK", TN_TIER_DISK},
	{"TIER_REMOTE", TN_TIER_REMOTE},
	{"SAVED_NOT", TN_SAVED_NOT},
	{"SAVED_STORED", TN_SAVED_STORED},
	{"SAVED_EXISTING", TN_SAVED_EXISTING},
	{"SAVED_HOST_ONLY", TN_SAVED_HOST_ONLY},
	{"SAVED_REJECTED", TN_SAVED_REJECTED},
	{"SAVED_FAILED", TN_SAVED_FAILED},
	{"ANY_UID", TN_ANY_UID},
};

static struct {
	PyTypeObject **type;
	PyType_Spec *spec;
} types[] = {
	{&tn_py_view_type, &tn_py_view_spec},	{&tn_py_geometry_type, &tn_py_geometry_spec}, {&tn_py_cache_type, &tn_py_cache_spec},
	{&tn_py_space_type, &tn_py_space_spec}, {&tn_py_memory_type, &tn_py_memory_spec},     {&tn_py_pool_type, &tn_py_pool_spec},
	{&tn_py_event_type, &tn_py_event_spec}, {NULL, &tn_py_buffer_spec},		      {NULL, &tn_py_load_spec},
	{NULL, &tn_py_save_spec},		{NULL, &tn_py_client_spec},
	{NULL, &tn_py_head_groups_spec},	{NULL, &tn_py_sequence_spec},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT, .m_name = "tenuto._core", .m_doc = "libtenuto for Python: what the package tenuto is made of.", .m_size = -1, .m_methods = functions,
};

static int add_all(PyObject *module)
{
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, types[i].spec, NULL);

		if (!type || PyModule_AddType(module, type))
			return -1;
		if (types[i].type)
			*types[i].type = type;
	}
	for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++)
		if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value))
			return -1;
	if (PyModule_AddFunctions(module, tn_py_observe_methods))
		return -1;
	return tn_py_errors_add(module) || tn_py_match_add(module) || tn_py_heap_add(module) || tn_py_save_add(module) || tn_py_xfer_add(module) ||
			       tn_py_events_add(module) ? -1 : 0;
}

/* The one symbol that the interpreter looks for. */
PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void)
{
	PyObject *module = PyModule_Create(&definition);

	if (module && add_all(module)) {
		Py_DECREF(module);
		return NULL;
	}
	return module;
}
