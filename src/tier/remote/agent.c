/* SPDX-License-Identifier: Apache-2.0 */
/* Objects by the transfer agent. Of each transfer the object and its bytes are sections for as long as it lasts. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <tenuto/xfer.h>
#include <unistd.h>

#include "base/error.h"
#include "tier/remote/client.h"
#include "xfer/wake.h"

#define SPEC_BYTES 512u
#define IF_ABSENT ",if_absent=1"

struct request {
	struct tn_xfer_agent *agent;
	struct tn_xfer_section object, memory[TN_OBJECT_PARTS];
	struct tn_xfer_list *local, *remote;
	struct tn_xfer_request *request;
	char name[TN_OBJECT_NAME_BYTES];
};

struct agent {
	struct tn_object_client base;
	const struct tn_alloc *alloc;
	struct tn_xfer_agent *agent, *replacer; /* replacer: replaces objects; NULL: none was replaced yet */
	char spec[SPEC_BYTES];
	void (*wake)(void *arg);
	void *wake_arg;
	struct request slot[TN_OBJECT_SLOTS];
};

static struct agent *agent_of(struct tn_object_client *c)
{
	return (struct agent *)c;
}

/* What begin has made of it, all or in part. */
static void end(struct request *r)
{
	tn_xfer_release(r->request);
	tn_xfer_list_destroy(r->local);
	tn_xfer_list_destroy(r->remote);
	if (r->object.meta)
		tn_xfer_deregister(r->agent, TN_XFER_OBJECT, &r->object, 1, 0);
	for (uint32_t i = 0; i < TN_OBJECT_PARTS && r->memory[i].bytes; i++)
		tn_xfer_deregister(r->agent, TN_XFER_DRAM, &r->memory[i], 1, 0);
	memset(r, 0, sizeof(*r));
}

static int add_sections(struct request *r, uint32_t slot, const struct tn_object_transfer *t)
{
	const struct tn_xfer_section object = {.device = slot + 1, .meta = r->name};
	int rc = tn_xfer_register(r->agent, TN_XFER_OBJECT, &object, 1);

	if (rc == 0)
		r->object = object;
	for (uint32_t i = 0; i < TN_OBJECT_PARTS && t->part[i].bytes && rc == 0; i++) {
		const struct tn_xfer_section memory = {.address = (uintptr_t)t->part[i].address, .bytes = t->part[i].bytes};

		rc = tn_xfer_register(r->agent, TN_XFER_DRAM, &memory, 1);
		if (rc == 0)
			r->memory[i] = memory;
	}
	return rc;
}

static int add_lists(struct request *r, uint32_t slot, const struct tn_object_transfer *t)
{
	struct tn_xfer_run object[TN_OBJECT_PARTS], memory[TN_OBJECT_PARTS];
	uint64_t at = 0;
	uint32_t n = 0;
	int rc;

	for (; n < TN_OBJECT_PARTS && t->part[n].bytes; at += t->part[n++].bytes) {
		object[n] = (struct tn_xfer_run){.address = at, .bytes = t->part[n].bytes, .device = slot + 1, .stride = t->part[n].bytes, .count = 1};
		memory[n] = object[n];
		memory[n].address = (uintptr_t)t->part[n].address;
		memory[n].device = 0;
	}
	rc = tn_xfer_list_create(r->agent, NULL, TN_XFER_DRAM, memory, n, &r->local);
	return rc ? rc : tn_xfer_list_create(r->agent, NULL, TN_XFER_OBJECT, object, n, &r->remote);
}

static int create_agent(const char *role, const char *spec, struct tn_xfer_agent **out)
{
	const char *const backends[] = {"memory", spec};
	struct tn_xfer_agent_opts o;
	char name[64];

	snprintf(name, sizeof(name), "tenuto-remote-%s%d", role, (int)getpid());
	tn_xfer_agent_opts_init(&o);
	o.name = name;
	o.backends = backends;
	o.nbackends = 2;
	o.listen = "none";
	return tn_xfer_agent_create(&o, out);
}

static int create_replacer(struct agent *a)
{
	int rc = create_agent("replacer-", a->spec, &a->replacer);

	if (rc == 0)
		tn_xfer_wake_by(a->replacer, a->wake, a->wake_arg);
	return rc;
}

static int begin(struct tn_object_client *c, uint32_t slot, const struct tn_object_transfer *t)
{
	struct agent *a = agent_of(c);
	struct request *r = &a->slot[slot];
	int rc = t->replace && !a->replacer ? create_replacer(a) : 0;

	if (rc)
		return rc;
	r->agent = t->replace ? a->replacer : a->agent;
	snprintf(r->name, sizeof(r->name), "%s", t->name);
	rc = add_sections(r, slot, t);
	rc = rc ? rc : add_lists(r, slot, t);
	rc = rc ? rc : tn_xfer_request_create(r->agent, t->write ? TN_XFER_WRITE : TN_XFER_READ, r->local, NULL, r->remote, NULL, 0, NULL, &r->request);
	rc = rc ? rc : tn_xfer_post(r->request, t->deadline_ns, NULL, TN_XFER_NO_NOTIFICATION);
	if (rc)
		end(r);
	return rc;
}

static int poll(struct tn_object_client *c, uint32_t slot)
{
	struct request *r = &agent_of(c)->slot[slot];
	struct tn_xfer_status s = {.size = sizeof(s)};

	tn_xfer_status(r->request, &s);
	if (s.state != TN_XFER_ENDED)
		return -EINPROGRESS;
	if (s.status && s.status != -ENOENT && s.status != -EEXIST)
		tn_xfer_wait(r->request, 0); /* for the text of its failure */
	end(r);
	return s.status;
}

static void wake_by(struct tn_object_client *c, void (*fn)(void *arg), void *arg)
{
	struct agent *a = agent_of(c);

	a->wake = fn;
	a->wake_arg = arg;
	tn_xfer_wake_by(a->agent, fn, arg);
}

static void destroy(struct tn_object_client *c)
{
	struct agent *a = agent_of(c);

	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++) {
		if (a->slot[i].request)
			tn_xfer_cancel(a->slot[i].request, TN_FOREVER);
		end(&a->slot[i]);
	}
	tn_xfer_agent_destroy(a->agent);
	tn_xfer_agent_destroy(a->replacer);
	tn_put(a->alloc, a, sizeof(*a));
}

static const struct tn_object_client_ops ops = {.size = sizeof(ops), .name = "agent", .begin = begin, .poll = poll, .wake = wake_by, .destroy = destroy};

int tn_agent_client_create(const char *spec, const struct tn_alloc *alloc, struct tn_object_client **out)
{
	struct agent *a = tn_get(alloc, sizeof(*a));
	char first[SPEC_BYTES + sizeof(IF_ABSENT)];
	int rc;

	if (!a)
		return tn_fail(-ENOMEM, "remote tier: no memory");
	a->base.ops = &ops;
	a->alloc = alloc;
	snprintf(a->spec, sizeof(a->spec), "%s", spec);
	snprintf(first, sizeof(first), "%s%s", a->spec, IF_ABSENT);
	rc = create_agent("", first, &a->agent);
	if (rc)
		tn_put(alloc, a, sizeof(*a));
	else
		*out = &a->base;
	return rc;
}
