/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's HTTP server (libmicrohttpd), on a thread of its own: /metrics, /healthz, /readyz and /v1/hints.
 *
 *   /metrics  200 and the metrics; 503 while there is no cache
 *   /healthz  200 while the process answers, and its cache if there is one; it is to be restarted if that ends
 *   /readyz   200 while the cache is open; 503 before and after
 *   /v1/hints POST with the token: 202, whatever blocks are there; 401 without; 404 if there is no token
 *
 * A connection is for one request, and ends 10 s after it was made, whatever it sends or takes. Where there are too many, the oldest ends: of the
 * newcomer's address, of this machine, or of all others, so that others never keep out the probes of this machine.
 */
#ifndef TENUTOD_HTTP_H
#define TENUTOD_HTTP_H

#include <tenuto/cache.h>
#include <tenuto/peer.h>
#include <tenuto/publish.h>

struct http;

/**
 * http_start - begin to answer; there is no cache yet
 * @address: of address.h
 * @fd:      a socket that listens already; -1: one is made for the address
 *
 * Return: 0 and *out (NULL if the address is "off" and there is no socket), or -errno of the socket.
 */
int http_start(const char *address, int fd, struct http **out);
void http_stop(struct http *http);

/*
 * From here on there is this cache, until http_cache_closes has returned. publisher: of its events, or NULL; peers: who serves its blocks to other nodes,
 * or NULL; token: of hints, which stays; "": none are taken. http may be NULL.
 */
void http_cache_is_open(struct http *http, struct tn_cache *cache, struct tn_publisher *publisher, struct tn_peer_server *peers, const char *token);
void http_cache_closes(struct http *http);

#endif
