/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of all backends share: a kind of backend, and an agent with a local and a remote side of it. */
#ifndef TN_XFER_KIND_RIG_H
#define TN_XFER_KIND_RIG_H

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <tenuto/xfer.h>

#include "tn_test.h"

#define MIB (1u << 20)
#define BYTES (4u * MIB)
#define BLOCK 4096u
#define BLOCKS (BYTES / BLOCK)

/* A way to run all tests: the specs of the agent, the backend that is to be used, and where both sides lie. */
struct kind {
	const char *label;
	const char *spec;
	const char *backend;
	enum tn_xfer_segment remote, local;
	bool peer; /* the remote side is another agent's of this process */
	const char *objects; /* the backend that looks at the objects of the remote side */
};

/* An agent; local memory; a remote side in memory, in a file or in an object, its own or that of another agent. */
struct rig {
	const struct kind *kind;
	struct tn_xfer_agent *agent, *owner[2]; /* owner: of each side; the first is agent */
	unsigned char *local, *remote;
	char path[64];
	uint64_t base; /* address of the remote side */
	struct tn_xfer_section section[2];
	struct tn_xfer_list *list[2]; /* BLOCKS blocks each */
};

static inline struct tn_xfer_agent *agent_named(const char *name, const char *spec)
{
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_agent *a;

	tn_xfer_agent_opts_init(&opts);
	opts.name = name;
	opts.backends = &spec;
	opts.nbackends = 1;
	assert_int_equal(tn_xfer_agent_create(&opts, &a), 0);
	return a;
}

static inline struct tn_xfer_agent *agent_new(const char *spec)
{
	return agent_named("one", spec);
}

static inline void fill(unsigned char *to, size_t bytes, uint64_t salt)
{
	for (size_t i = 0; i < bytes; i += 8)
		memcpy(to + i, &(uint64_t){(i + salt * 97 + 1) * 0x9e3779b97f4a7c15u}, 8);
}

static inline struct tn_xfer_run blocks(const struct rig *r, unsigned side)
{
	return (struct tn_xfer_run){.address = side ? r->base : (uintptr_t)r->local, .bytes = BLOCK, .device = side, .stride = BLOCK, .count = BLOCKS};
}

static inline enum tn_xfer_segment segment_of(const struct rig *r, unsigned side)
{
	return side ? r->kind->remote : r->kind->local;
}

/* As lists name it. */
static inline const char *peer_of(const struct rig *r, unsigned side)
{
	return !side ? NULL : r->kind->peer ? "two" : "one";
}

static inline void load_other(const struct rig *r)
{
	static unsigned char metadata[1 << 16];
	int64_t n = tn_xfer_metadata(r->owner[1], TN_XFER_DRAM, NULL, 0, metadata, sizeof(metadata));

	assert_in_range(n, 1, sizeof(metadata));
	assert_int_equal(tn_xfer_load(r->agent, metadata, (size_t)n, NULL), 0);
}

static inline bool is_object(const struct rig *r)
{
	return r->kind->remote == TN_XFER_OBJECT;
}

/* An object is written whole. */
static inline enum tn_xfer_op op_of_parts(const struct rig *r)
{
	return is_object(r) ? TN_XFER_READ : TN_XFER_WRITE;
}

/* Between r->remote and the object, by an agent of its own. */
static inline void move_object(const struct rig *r, enum tn_xfer_op op, uint64_t bytes)
{
	struct tn_xfer_section s[2] = {{(uintptr_t)r->remote, bytes, 0, NULL}, {0, bytes, 1, r->path}};
	struct tn_xfer_agent *a = agent_new(r->kind->objects);
	struct tn_xfer_list *list[2];
	struct tn_xfer_request *q;

	for (unsigned i = 0; i < 2; i++) {
		struct tn_xfer_run run = {s[i].address, bytes, i, 0, 1};

		assert_int_equal(tn_xfer_register(a, i ? TN_XFER_OBJECT : TN_XFER_DRAM, &s[i], 1), 0);
		assert_int_equal(tn_xfer_list_create(a, NULL, i ? TN_XFER_OBJECT : TN_XFER_DRAM, &run, 1, &list[i]), 0);
	}
	assert_int_equal(tn_xfer_request_create(a, op, list[0], NULL, list[1], NULL, 0, NULL, &q), 0);
	assert_int_equal(tn_xfer_post(q, tn_test_deadline(), NULL, TN_XFER_NO_NOTIFICATION), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(q, tn_test_deadline())), 0);
	assert_int_equal(tn_xfer_release(q), 0);
	tn_xfer_list_destroy(list[0]);
	tn_xfer_list_destroy(list[1]);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

static inline void write_remote(const struct rig *r)
{
	if (r->kind->remote == TN_XFER_FILE) {
		int fd = open(r->path, O_WRONLY);

		assert_int_equal(pwrite(fd, r->remote, BYTES, 0), BYTES);
		close(fd);
	} else if (is_object(r)) {
		move_object(r, TN_XFER_WRITE, BYTES);
	}
}

static inline void read_remote(const struct rig *r)
{
	if (r->kind->remote == TN_XFER_FILE) {
		int fd = open(r->path, O_RDONLY);

		assert_int_equal(pread(fd, r->remote, BYTES, 0), BYTES);
		close(fd);
	} else if (is_object(r)) {
		move_object(r, TN_XFER_READ, BYTES);
	}
}

static inline void rig_new(struct rig *r, const struct kind *kind)
{
	static unsigned serial;

	*r = (struct rig){.kind = kind};
	snprintf(r->path, sizeof(r->path), "/var/tmp/tn-xfer-%d-%u", (int)getpid(), serial++);
	r->agent = r->owner[0] = agent_new(kind->spec);
	r->owner[1] = kind->peer ? agent_named("two", kind->spec) : r->agent;
	r->local = aligned_alloc(BLOCK, BYTES);
	r->remote = aligned_alloc(BLOCK, BYTES);
	fill(r->local, BYTES, 1);
	fill(r->remote, BYTES, 2);
	r->base = kind->remote == TN_XFER_DRAM ? (uintptr_t)r->remote : 0;
	r->section[0] = (struct tn_xfer_section){(uintptr_t)r->local, BYTES, 0, NULL};
	r->section[1] = (struct tn_xfer_section){r->base, BYTES, 1, kind->remote == TN_XFER_DRAM ? NULL : r->path};
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(tn_xfer_register(r->owner[i], segment_of(r, i), &r->section[i], 1), 0);
	if (kind->peer)
		load_other(r);
	for (unsigned i = 0; i < 2; i++) {
		struct tn_xfer_run run = blocks(r, i);

		assert_int_equal(tn_xfer_list_create(r->agent, peer_of(r, i), segment_of(r, i), &run, 1, &r->list[i]), 0);
		assert_int_equal(tn_xfer_list_count(r->list[i]), BLOCKS);
	}
	write_remote(r);
}

static inline void rig_free(struct rig *r)
{
	for (unsigned i = 0; i < 2; i++) {
		tn_xfer_list_destroy(r->list[i]);
		assert_int_equal(tn_xfer_deregister(r->owner[i], segment_of(r, i), &r->section[i], 1, tn_test_deadline()), 0);
	}
	if (r->kind->peer)
		assert_int_equal(tn_xfer_agent_destroy(r->owner[1]), 0);
	assert_int_equal(tn_xfer_agent_destroy(r->agent), 0);
	free(r->local);
	free(r->remote);
	unlink(r->path);
}

static inline struct tn_xfer_request *request(const struct rig *r, enum tn_xfer_op op, const uint32_t *local, const uint32_t *remote, uint32_t n)
{
	struct tn_xfer_request *q;

	assert_int_equal(tn_xfer_request_create(r->agent, op, r->list[0], local, r->list[1], remote, n, NULL, &q), 0);
	return q;
}

static inline int post(struct tn_xfer_request *q)
{
	return tn_xfer_post(q, tn_test_deadline(), NULL, TN_XFER_NO_NOTIFICATION);
}

static inline struct tn_xfer_status status(struct tn_xfer_request *q)
{
	struct tn_xfer_status s = {.size = sizeof(s)};

	assert_int_equal(tn_xfer_status(q, &s), 0);
	return s;
}

static inline void run_to_end(struct tn_xfer_request *q)
{
	assert_int_equal(post(q), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(q, tn_test_deadline())), 0);
}

/* What a kind has to be for a test. */
enum need {
	ENDS = 1,    /* its remote side may become shorter */
	OBJECTS = 2, /* that is an object */
	NO_FAULTS = 4, /* faulty is put over it */
	SMALL = 8, /* it moves few bytes, and not slowly */
};

/* A test that runs once per kind, which is its state, unless the kind lacks one of the needs. */
struct each {
	const char *name;
	CMUnitTestFunction test;
	unsigned needs;
};

/* Those of kind_faults_test.c. */
extern const struct each kind_faults[];
extern const size_t kind_faults_count;

#endif
