/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets of a loop: none goes to a program that is executed, and a forked child closes its copies. */
#ifndef TN_PLUGIN_HTTP_SOCKETS_H
#define TN_PLUGIN_HTTP_SOCKETS_H

/* Two per connection are enough: libcurl tries two addresses of a host at the same time. A socket beyond them is refused. */
#define HTTP_SOCKETS_MAX 520u

struct http_sockets {
	struct http_sockets *next;
	int fd[HTTP_SOCKETS_MAX]; /* -1: free */
};

void http_sockets_begin(struct http_sockets *s);
void http_sockets_end(struct http_sockets *s);
/* A descriptor, or -1. */
int http_sockets_open(struct http_sockets *s, int family, int type, int protocol);
void http_sockets_close(struct http_sockets *s, int fd);

#endif
