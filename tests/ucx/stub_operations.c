/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints, keys and operations of the tests' libucp. A worker's calls come one at a time, as its user has promised: there is no lock here for ThreadSanitizer to see. */
#include "stub_ucp.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct ucp_ep {
	struct ucp_ep *next;
	ucp_worker_h worker;
	ucp_err_handler_t handler;
	bool closed, failed;
	uint32_t in_flight;
};

struct ucp_rkey {
	ucp_mem_h memh; /* the peer's */
};

enum kind { PUT, GET, FLUSH };

/* It is its own request. A request of a close has no endpoint. */
struct stub_operation {
	struct stub_operation *next;
	struct ucp_ep *ep;
	enum kind kind;
	unsigned char *local, *remote;
	size_t bytes;
	ucp_mem_h here, there;
	ucp_send_nbx_callback_t ended;
	void *arg;
	uint64_t due;
};

/* ---- the end of an operation ------------------------------------------------------------------------------------------- */

static void end_endpoint(struct ucp_ep *ep)
{
	struct ucp_ep **at = &ep->worker->endpoints;

	if (!ep->closed || ep->in_flight)
		return;
	while (*at != ep)
		at = &(*at)->next;
	*at = ep->next;
	stub_free(ep);
}

/* Moves what is moved of it. */
static ucs_status_t move(struct stub_operation *o)
{
	ucs_status_t status = o->ep->closed ? UCS_ERR_CANCELED : UCS_OK;
	size_t bytes;

	if (STUB_GET(stub_ucp.lost))
		return o->kind == GET ? UCS_ERR_CANCELED : UCS_OK;
	if (!o->ep->closed && (o->ep->failed || stub_fails(o->kind == FLUSH ? "flush" : "operation")))
		status = UCS_ERR_ENDPOINT_TIMEOUT;
	bytes = status == UCS_OK ? o->bytes : o->bytes / 2;
	if (bytes)
		memcpy(o->kind == PUT ? o->remote : o->local, o->kind == PUT ? o->local : o->remote, bytes);
	return status;
}

static void leave(struct stub_operation *o)
{
	STUB_ADD(stub_ucp.in_flight, -1u);
	if (o->here)
		STUB_ADD(o->here->users, -1);
	if (o->there)
		STUB_ADD(o->there->users, -1);
}

static void end_operation(struct stub_operation *o)
{
	struct ucp_ep *ep = o->ep;
	ucs_status_t status = move(o);
	struct stub_operation **at = &ep->worker->operations;

	while (*at != o)
		at = &(*at)->next;
	*at = o->next;
	leave(o);
	o->ended(o, status, o->arg); /* which frees it */
	ep->in_flight--;
	end_endpoint(ep);
}

/* Operations wait for the end of their endpoint. */
static bool stand_still(const struct ucp_ep *ep)
{
	return (STUB_GET(stub_ucp.stopped) || STUB_GET(stub_ucp.lost)) && !ep->closed && !ep->failed;
}

/* A flush ends after all that were begun before it at its endpoint. */
static bool is_due(const ucp_worker_h worker, const struct stub_operation *o)
{
	if (o->due > worker->turn || stand_still(o->ep))
		return false;
	for (const struct stub_operation *before = worker->operations; o->kind == FLUSH && before != o; before = before->next)
		if (before->ep == o->ep)
			return false;
	return true;
}

static struct stub_operation *next_due(const ucp_worker_h worker)
{
	struct stub_operation *found = NULL;

	for (struct stub_operation *o = worker->operations; o; o = o->next)
		if (is_due(worker, o)) {
			found = o;
			if (!STUB_GET(stub_ucp.reversed))
				break;
		}
	return found;
}

static void break_endpoints(ucp_worker_h worker)
{
	for (struct ucp_ep *ep = worker->endpoints; ep; ep = ep->next) {
		if (ep->failed || ep->closed || !ep->in_flight)
			continue;
		ep->failed = true;
		ep->handler.cb(ep->handler.arg, ep, UCS_ERR_ENDPOINT_TIMEOUT);
	}
}

unsigned stub_worker_turn(ucp_worker_h worker)
{
	struct stub_operation *o;
	unsigned ended = 0;

	worker->turn++;
	if (STUB_GET(stub_ucp.broken))
		break_endpoints(worker);
	for (; (o = next_due(worker)) != NULL; ended++)
		end_operation(o);
	return ended;
}

bool stub_worker_busy(ucp_worker_h worker)
{
	for (struct stub_operation *o = worker->operations; o; o = o->next)
		if (!stand_still(o->ep) || STUB_GET(stub_ucp.broken))
			return true;
	return false;
}

void stub_worker_end(ucp_worker_h worker)
{
	if (worker->operations)
		stub_misused("a worker is destroyed while an operation is in flight");
	while (worker->endpoints) {
		struct ucp_ep *ep = worker->endpoints;

		worker->endpoints = ep->next;
		stub_free(ep);
	}
}

/* ---- endpoints and keys ------------------------------------------------------------------------------------------------ */

EXPORT ucs_status_t ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params, ucp_ep_h *out)
{
	struct ucp_ep *ep;

	if (stub_fails(__func__))
		return UCS_ERR_UNREACHABLE;
	ep = stub_new(sizeof(*ep));
	ep->worker = worker;
	ep->handler = params->err_handler;
	ep->next = worker->endpoints;
	worker->endpoints = ep;
	*out = ep;
	return UCS_OK;
}

/* By force, and its operations end with it or later. Later, it also has a request, which ends before they do. */
EXPORT ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *param)
{
	ucp_worker_h worker = ep->worker;
	uint32_t more = STUB_GET(stub_ucp.outlive);
	struct stub_operation *o, *next;

	if (ep->closed)
		stub_misused("an endpoint is closed twice");
	ep->closed = true;
	ep->in_flight++; /* until the end of this call */
	STUB_ADD(stub_ucp.closed, 1);
	for (o = worker->operations; o; o = next) {
		next = o->next;
		o->due = o->ep == ep ? worker->turn + more : o->due;
		if (o->ep == ep && !more)
			end_operation(o);
	}
	ep->in_flight--;
	end_endpoint(ep);
	return more ? stub_new(sizeof(*o)) : NULL;
}

EXPORT ucs_status_t ucp_request_check_status(void *request)
{
	return ((struct stub_operation *)request)->ep ? UCS_INPROGRESS : UCS_OK;
}

EXPORT void ucp_request_free(void *request)
{
	stub_free(request);
}

EXPORT ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h ep, const void *key, ucp_rkey_h *out)
{
	if (stub_fails(__func__))
		return UCS_ERR_UNREACHABLE;
	if (ep->closed)
		stub_misused("a key is unpacked for a closed endpoint");
	*out = stub_new(sizeof(**out));
	memcpy(&(*out)->memh, key, sizeof((*out)->memh));
	return UCS_OK;
}

EXPORT void ucp_rkey_destroy(ucp_rkey_h rkey)
{
	stub_free(rkey);
}

/* ---- operations -------------------------------------------------------------------------------------------------------- */

static ucs_status_ptr_t begin(struct stub_operation *o, ucp_ep_h ep, const ucp_request_param_t *param)
{
	struct stub_operation **at = &ep->worker->operations;
	uint32_t late = STUB_GET(stub_ucp.late);
	bool now = o->kind == PUT && STUB_GET(stub_ucp.lost);
	ucs_status_t status;

	if (ep->closed)
		stub_misused("an operation of a closed endpoint");
	o->ep = ep;
	o->ended = param->cb.send;
	o->arg = param->user_data;
	o->due = ep->worker->turn + late;
	STUB_ADD(stub_ucp.in_flight, 1);
	if (now || (!late && !stand_still(ep) && !STUB_GET(stub_ucp.broken) && (o->kind != FLUSH || !ep->in_flight))) {
		status = move(o);
		leave(o);
		stub_free(o);
		return UCS_STATUS_PTR(status);
	}
	ep->in_flight++;
	while (*at)
		at = &(*at)->next;
	*at = o;
	return o;
}

static bool within(const struct ucp_mem *m, const unsigned char *at, size_t bytes)
{
	return at >= m->address && bytes <= m->bytes && (size_t)(at - m->address) <= m->bytes - bytes;
}

static ucs_status_ptr_t begin_copy(enum kind kind, ucp_ep_h ep, void *local, size_t bytes, uint64_t remote, ucp_rkey_h rkey,
				   const ucp_request_param_t *param)
{
	struct stub_operation *o = stub_new(sizeof(*o));

	o->kind = kind;
	o->local = local;
	o->remote = (unsigned char *)(uintptr_t)remote;
	o->bytes = bytes;
	o->here = param->memh;
	o->there = rkey->memh;
	STUB_ADD(o->here->users, 1);
	STUB_ADD(o->there->users, 1);
	if (!within(o->here, o->local, bytes) || !within(o->there, o->remote, bytes))
		stub_misused("an operation outside of registered memory");
	return begin(o, ep, param);
}

EXPORT ucs_status_ptr_t ucp_put_nbx(ucp_ep_h ep, const void *buffer, size_t count, uint64_t remote, ucp_rkey_h rkey, const ucp_request_param_t *param)
{
	union {
		const void *in;
		void *out;
	} local = {.in = buffer};

	if (stub_fails(__func__))
		return UCS_STATUS_PTR(UCS_ERR_NO_MEMORY);
	return begin_copy(PUT, ep, local.out, count, remote, rkey, param);
}

EXPORT ucs_status_ptr_t ucp_get_nbx(ucp_ep_h ep, void *buffer, size_t count, uint64_t remote, ucp_rkey_h rkey, const ucp_request_param_t *param)
{
	if (stub_fails(__func__))
		return UCS_STATUS_PTR(UCS_ERR_NO_MEMORY);
	return begin_copy(GET, ep, buffer, count, remote, rkey, param);
}

EXPORT ucs_status_ptr_t ucp_ep_flush_nbx(ucp_ep_h ep, const ucp_request_param_t *param)
{
	struct stub_operation *o;

	if (stub_fails(__func__))
		return UCS_STATUS_PTR(UCS_ERR_NO_MEMORY);
	o = stub_new(sizeof(*o));
	o->kind = FLUSH;
	return begin(o, ep, param);
}
