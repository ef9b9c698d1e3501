/* SPDX-License-Identifier: Apache-2.0 */
/* One object written and read back, with no cache: whether a remote would serve. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "tier/remote/clients.h"
#include "tier/remote/object.h"
#include "tier/remote/spec.h"
#include "tier/remote/try.h"

#define POLL_NS 1000000

/* Its failure is this thread's last error. */
static int transfer(struct tn_object_client *c, struct tn_object_transfer *t)
{
	const struct timespec pause = {.tv_nsec = POLL_NS};
	int rc = c->ops->begin(c, 0, t);

	while (rc == 0 && (rc = c->ops->poll(c, 0)) == -EINPROGRESS) {
		rc = 0;
		nanosleep(&pause, NULL);
	}
	return rc;
}

static int missing(const struct tn_remote_spec *spec)
{
	return tn_fail(-ENOENT, "remote %s: there is nothing to write to: make the bucket, or name another one", spec->store.name);
}

static int read_back(const struct tn_remote_spec *spec, struct tn_object_client *c, struct tn_object_transfer *t, const unsigned char *written)
{
	int rc = transfer(c, t);

	if (rc == -ENOENT && c->ops->read_only)
		return 0; /* it has answered */
	if (rc == 0 && !c->ops->read_only && memcmp(t->part[0].address, written, TN_OBJECT_HEAD_BYTES) != 0)
		return tn_fail(-EIO, "remote %s: what was read is not what was written", spec->store.name);
	return rc;
}

int tn_remote_try(const struct tn_remote_spec *spec, uint64_t deadline_ns)
{
	unsigned char written[TN_OBJECT_HEAD_BYTES], got[TN_OBJECT_HEAD_BYTES] = {0};
	char name[TN_PREFIX_BYTES + sizeof("/check")];
	struct tn_object_transfer t = {.write = true, .replace = true, .name = name, .part = {{written, sizeof(written)}}, .deadline_ns = deadline_ns};
	struct tn_object_client *c;
	int rc = tn_object_client_create(spec->client, &tn_alloc_system, &c);

	if (rc)
		return rc;
	snprintf(name, sizeof(name), "%s/check", spec->store.prefix);
	memset(written, 0x7e, sizeof(written));
	rc = c->ops->read_only ? 0 : transfer(c, &t);
	if (rc == -ENOENT)
		rc = missing(spec);
	t.write = t.replace = false;
	t.part[0].address = got;
	rc = rc ? rc : read_back(spec, c, &t, written);
	c->ops->destroy(c);
	return rc;
}
