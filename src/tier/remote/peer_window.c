/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/remote/peer_window.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define CONNECT_NS 1000000000ull
#define SLICE_NS 20000000ull /* between looks whether it is to stop */

/* What one read is made of. */
struct reading {
	struct tn_xfer_section memory[TN_OBJECT_PARTS];
	struct tn_xfer_list *local, *remote;
	struct tn_xfer_request *request;
};

void tn_peer_window_init(struct tn_peer_window *w, const struct tn_secret *secret)
{
	const char *const backends[] = {"memory,inline_bytes=1073741824"}; /* the thread has nothing else to do */
	struct tn_xfer_agent_opts o;
	char name[64];

	memset(w, 0, sizeof(*w));
	snprintf(name, sizeof(name), "tenuto-remote-%d-%llx", (int)getpid(), (unsigned long long)tn_now_ns(&tn_clock_system));
	tn_xfer_agent_opts_init(&o);
	o.name = name;
	o.backends = backends;
	o.nbackends = 1;
	o.listen = "none";
	o.secret = secret;
	o.secret_bytes = sizeof(*secret);
	o.connect_ns = CONNECT_NS;
	if (tn_xfer_agent_create(&o, &w->agent))
		w->agent = NULL;
}

void tn_peer_window_close(struct tn_peer_window *w)
{
	tn_xfer_agent_destroy(w->agent);
	w->agent = NULL;
}

/* Connects before the first section is told: an agent that connects takes the peer's present revision for known, and then refuses metadata from before it. */
void tn_peer_window_join(struct tn_peer_window *w, const void *metadata, size_t bytes)
{
	w->open = w->agent && tn_xfer_load(w->agent, metadata, bytes, w->peer) == 0 &&
		  tn_xfer_connect(w->agent, w->peer, tn_now_ns(&tn_clock_system) + CONNECT_NS) == 0;
}

void tn_peer_window_add(struct tn_peer_window *w, const void *metadata, size_t bytes)
{
	if (w->open && tn_xfer_load(w->agent, metadata, bytes, NULL))
		w->open = false;
}

void tn_peer_window_leave(struct tn_peer_window *w)
{
	if (w->peer[0])
		tn_xfer_invalidate(w->agent, w->peer);
	w->peer[0] = 0;
	w->open = false;
}

static int prepare(struct tn_peer_window *w, const struct tn_object_transfer *t, uint64_t address, struct reading *r)
{
	struct tn_xfer_run local[TN_OBJECT_PARTS], remote[TN_OBJECT_PARTS];
	uint32_t n = 0;
	int rc = 0;

	for (; n < TN_OBJECT_PARTS && t->part[n].bytes && rc == 0; address += t->part[n++].bytes) {
		const struct tn_xfer_section s = {.address = (uintptr_t)t->part[n].address, .bytes = t->part[n].bytes};

		local[n] = (struct tn_xfer_run){.address = s.address, .bytes = s.bytes, .stride = s.bytes, .count = 1};
		remote[n] = local[n];
		remote[n].address = address;
		rc = tn_xfer_register(w->agent, TN_XFER_DRAM, &s, 1);
		if (rc == 0)
			r->memory[n] = s;
	}
	rc = rc ? rc : tn_xfer_list_create(w->agent, NULL, TN_XFER_DRAM, local, n, &r->local);
	rc = rc ? rc : tn_xfer_list_create(w->agent, w->peer, TN_XFER_DRAM, remote, n, &r->remote);
	return rc ? rc : tn_xfer_request_create(w->agent, TN_XFER_READ, r->local, NULL, r->remote, NULL, 0, NULL, &r->request);
}

static int move(struct reading *r, uint64_t deadline_ns, const uint32_t *stop)
{
	int rc = tn_xfer_post(r->request, deadline_ns, NULL, TN_XFER_NO_NOTIFICATION);

	if (rc)
		return rc;
	do
		rc = tn_xfer_wait(r->request, tn_now_ns(&tn_clock_system) + SLICE_NS);
	while (rc == -EAGAIN && !__atomic_load_n(stop, __ATOMIC_ACQUIRE));
	tn_xfer_cancel(r->request, TN_FOREVER);
	return rc == -EAGAIN ? -ECANCELED : rc;
}

int tn_peer_window_read(struct tn_peer_window *w, const struct tn_object_transfer *t, uint64_t address, const uint32_t *stop)
{
	struct reading r = {.local = NULL};
	int rc = w->open ? prepare(w, t, address, &r) : -ENOTSUP;

	if (rc)
		w->open = false;
	else
		rc = move(&r, t->deadline_ns, stop);
	tn_xfer_release(r.request);
	tn_xfer_list_destroy(r.local);
	tn_xfer_list_destroy(r.remote);
	for (uint32_t i = 0; i < TN_OBJECT_PARTS && r.memory[i].bytes; i++)
		tn_xfer_deregister(w->agent, TN_XFER_DRAM, &r.memory[i], 1, 0);
	return rc;
}
