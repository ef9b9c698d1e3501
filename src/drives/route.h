/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One engine of the I/O contract (io/io.h) from several: files go to one engine, and each namespace to its own, by the beginning of its path.
 *
 * It knows nothing of what the engines are. Its thread sleeps in the engine of files while no request is with a namespace; otherwise it looks
 * at all of them in turn, because namespaces have no interrupts.
 */
#ifndef TN_DRIVES_ROUTE_H
#define TN_DRIVES_ROUTE_H

#include "base/alloc.h"
#include "base/clock.h"
#include "io/io.h"

#define TN_ROUTES_MAX 16u

/**
 * struct tn_route - where paths lead
 * @prefix: of the paths, up to a slash
 * @io:     the engine; the handle of its file is the next one after those of the routes before, from TN_IO_FILES_MAX on
 */
struct tn_route {
	const char *prefix;
	struct tn_io *io;
};

/*
 * files: for all other paths, or NULL: there are none. All engines are the new one's, which destroys them; after an error they are the caller's.
 * 0 and *out; -EINVAL, -ENOMEM.
 */
int tn_route_create(struct tn_io *files, const struct tn_route *routes, uint32_t n, const struct tn_alloc *alloc, const struct tn_clock *clock,
		    struct tn_io **out);

#endif
