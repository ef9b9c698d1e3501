/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses and creates an engine. */
#include <errno.h>

#include "base/error.h"
#include "ioengine/engine.h"

#define DEFAULT_DEPTH 256u
#define DEFAULT_THREADS 8u

int tn_ioengine_create(const struct tn_ioengine_opts *opts, struct tn_io **out)
{
	struct tn_ioengine_opts o = *opts;
	int err;

	if (!o.depth)
		o.depth = DEFAULT_DEPTH;
	if (!o.threads)
		o.threads = DEFAULT_THREADS;
	if (o.depth > 4096 || (o.depth & (o.depth - 1)))
		return tn_fail(-EINVAL, "depth %u: must be a power of two, 1..4096", o.depth);
	if (o.threads > 64)
		return tn_fail(-EINVAL, "threads %u: must be 1..64", o.threads);
	if (o.kind > TN_IOENGINE_POSIX)
		return tn_fail(-EINVAL, "kind %u: unknown engine", o.kind);
	if (o.kind == TN_IOENGINE_POSIX)
		return tn_ioengine_posix_create(&o, out);
	err = tn_ioengine_uring_create(&o, 0, out);
	if (!err || o.kind == TN_IOENGINE_URING)
		return err;
	tn_log(o.log, TN_LOG_WARN, "%s; using %u threads instead", tn_error_last()->text, o.threads);
	return tn_ioengine_posix_create(&o, out);
}
