/* SPDX-License-Identifier: Apache-2.0 */
/* A place in a list of buffers, from which bytes are taken or to which they are given. */
#ifndef TN_PLUGIN_HTTP_CURSOR_H
#define TN_PLUGIN_HTTP_CURSOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

struct http_cursor {
	const struct iovec *iov, *end;
	uint64_t at;   /* bytes of *iov that are behind the cursor */
	uint64_t left; /* bytes before the cursor's end */
};

static inline void http_cursor_set(struct http_cursor *c, const struct iovec *iov, uint32_t n, uint64_t skip, uint64_t bytes)
{
	*c = (struct http_cursor){iov, iov ? iov + n : NULL, 0, bytes};
	while (c->iov < c->end && skip >= c->iov->iov_len)
		skip -= c->iov++->iov_len;
	c->at = skip;
}

/* How many of @n bytes lie in one piece at the cursor, which moves over them; *piece: where. 0: the end. */
static inline size_t http_cursor_step(struct http_cursor *c, size_t n, char **piece)
{
	uint64_t here;

	while (c->iov < c->end && c->at == c->iov->iov_len) {
		c->iov++;
		c->at = 0;
	}
	if (c->iov == c->end || !c->left)
		return 0;
	here = c->iov->iov_len - c->at;
	here = here < c->left ? here : c->left;
	here = here < n ? here : n;
	*piece = (char *)c->iov->iov_base + c->at;
	c->at += here;
	c->left -= here;
	return here;
}

/* Copies up to @n bytes from the buffers. Return: how many. */
static inline size_t http_cursor_take(struct http_cursor *c, char *out, size_t n)
{
	size_t done = 0, step;
	char *piece;

	while ((step = http_cursor_step(c, n - done, &piece)) > 0) {
		memcpy(out + done, piece, step);
		done += step;
	}
	return done;
}

/* Copies up to @n bytes into the buffers. Return: how many fit. */
static inline size_t http_cursor_give(struct http_cursor *c, const char *from, size_t n)
{
	size_t done = 0, step;
	char *piece;

	while ((step = http_cursor_step(c, n - done, &piece)) > 0) {
		memcpy(piece, from + done, step);
		done += step;
	}
	return done;
}

#endif
