/* SPDX-License-Identifier: Apache-2.0 */
/* Peers: an endpoint each, and the keys of their sections. */
#include "ucx.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RKEYS_MAX 8192u /* that a peer without jobs keeps */
#define PADDED_BYTES (20u << 10) /* 64 kinds of memory of at most 256 bytes, and a head */
#define HEAD_BYTES 8u	/* of an identity: UCX's version; the address follows */

size_t ucx_identity(void *backend, unsigned char out[TN_XFER_IDENTITY_MAX])
{
	struct ucx *u = backend;
	uint32_t head[2] = {u->api->major, u->api->minor};

	memcpy(out, head, HEAD_BYTES);
	memcpy(out + HEAD_BYTES, u->address, u->address_bytes);
	return HEAD_BYTES + u->address_bytes;
}

/* ---- keys -------------------------------------------------------------------------------------------------------------- */

static void forget_rkeys(struct ucx_peer *p)
{
	for (uint32_t i = 0; i < UCX_RKEY_SLOTS; i++) {
		struct ucx_rkey *k;

		while ((k = p->rkey[i]) != NULL) {
			p->rkey[i] = k->next;
			p->ucx->api->ucp_rkey_destroy(k->rkey);
			free(k);
		}
	}
	p->nrkeys = 0;
}

void ucx_rkeys_trim(struct ucx_peer *p)
{
	if (p->nrkeys > RKEYS_MAX && !p->jobs)
		forget_rkeys(p);
}

/* UCX takes no length: what a cut key lacks is zeros, and not memory behind it. */
ucp_rkey_h ucx_rkey_of(struct ucx_peer *p, const struct tn_xfer_section_key *key)
{
	unsigned char padded[PADDED_BYTES];
	struct ucx_rkey *k;

	for (k = p->rkey[key->section % UCX_RKEY_SLOTS]; k; k = k->next)
		if (k->section == key->section)
			return k->rkey;
	k = calloc(1, sizeof(*k));
	if (!k)
		return NULL;
	memset(padded, 0, sizeof(padded));
	memcpy(padded, key->data, key->bytes);
	if (p->ucx->api->ucp_ep_rkey_unpack(p->ep, padded, &k->rkey) != UCS_OK) {
		free(k);
		return NULL;
	}
	k->section = key->section;
	k->next = p->rkey[key->section % UCX_RKEY_SLOTS];
	p->rkey[key->section % UCX_RKEY_SLOTS] = k;
	p->nrkeys++;
	return k->rkey;
}

/* ---- endpoints --------------------------------------------------------------------------------------------------------- */

void ucx_peer_ready(struct ucx_peer *p)
{
	for (struct ucx_work *w = p->ucx->works; w; w = w->next)
		if (w->peer == p)
			ucx_ready(w);
}

void ucx_peer_fail(struct ucx_peer *p, enum ucx_reason reason, ucs_status_t status)
{
	if (p->failed)
		return;
	p->failed = true;
	p->code = -ECONNRESET;
	p->reason = reason;
	p->status = status;
	ucx_peer_ready(p);
}

/* UCX's call, from within progress: the endpoint is of no use any more. */
static void endpoint_failed(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	(void)ep;
	ucx_peer_fail(arg, UCX_ENDPOINT_FAILED, status);
}

static void close_endpoint(struct ucx_peer *p)
{
	const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
	void *request = p->ucx->api->ucp_ep_close_nbx(p->ep, &force);

	p->ep = NULL;
	p->closing = UCS_PTR_IS_PTR(request) ? request : NULL;
}

/* Whether the peer is to be looked at again. */
static bool close_failed(struct ucx_peer *p)
{
	const struct ucx_api *api = p->ucx->api;

	if (!p->failed && !p->leaving)
		return false;
	if (p->ep)
		close_endpoint(p);
	if (p->closing && api->ucp_request_check_status(p->closing) != UCS_INPROGRESS) {
		api->ucp_request_free(p->closing);
		p->closing = NULL;
	}
	if (p->closing)
		return true;
	if (!p->closed) {
		p->closed = true;
		ucx_peer_ready(p);
	}
	return p->leaving || p->jobs; /* operations may end a while after the endpoint */
}

bool ucx_peers_close(struct ucx *u)
{
	bool again = false;

	for (struct ucx_peer **at = &u->peers; *at;) {
		struct ucx_peer *p = *at;
		bool more = close_failed(p);

		if (p->leaving && p->closed && !p->jobs) {
			*at = p->next;
			forget_rkeys(p);
			free(p);
			continue;
		}
		again |= more;
		at = &p->next;
	}
	return again;
}

int ucx_peer_add(void *backend, const unsigned char *identity, size_t bytes, void **out)
{
	struct ucx *u = backend;
	uint32_t head[2] = {0, 0};
	struct ucx_peer *p;
	ucs_status_t status;
	ucp_ep_params_t params = {
		.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
		.address = (const ucp_address_t *)(identity + HEAD_BYTES),
		.err_mode = UCP_ERR_HANDLING_MODE_PEER,
		.err_handler.cb = endpoint_failed,
	};

	if (bytes > HEAD_BYTES)
		memcpy(head, identity, HEAD_BYTES);
	if (head[0] != u->api->major || head[1] != u->api->minor)
		return ucx_fail(-EPROTO, "backend ucx: the peer has UCX %u.%u, and this process %u.%u: use one version", head[0], head[1], u->api->major,
				u->api->minor);
	p = calloc(1, sizeof(*p));
	if (!p)
		return ucx_fail(-ENOMEM, "backend ucx: no memory for a peer");
	p->ucx = u;
	params.err_handler.arg = p;
	ucx_lock(u);
	status = u->api->ucp_ep_create(u->worker, &params, &p->ep);
	if (status == UCS_OK) {
		p->next = u->peers;
		u->peers = p;
	}
	ucx_unlock(u);
	if (status != UCS_OK) {
		free(p);
		return ucx_fail(ucx_errno(status), "backend ucx: no endpoint: %s (UCX_TLS and UCX_NET_DEVICES choose transports)", ucx_status(status));
	}
	ucx_wake(u);
	*out = p;
	return 0;
}

void ucx_peer_remove(void *backend, void *peer)
{
	struct ucx_peer *p = peer;

	ucx_lock(backend);
	p->leaving = true;
	ucx_unlock(backend);
	ucx_wake(backend);
}
