/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `tenuto store info|verify|check` do: look into a store without a cache around it. On any engine,
 * so that tests run it on the simulated disk; admin.c brings a real one.
 */
#include <errno.h>
#include <string.h>
#include <tenuto/admin.h>

#include "base/error.h"
#include "store/store_internal.h"

/* A registry that only remembers. */
struct registry {
	const struct tn_alloc *alloc;
	struct tn_store_entry *entry;
	size_t n, room;
};

static uint32_t remember(void *arg, tn_slot slot, const struct tn_store_entry *e)
{
	struct registry *r = arg;

	if (r->n == r->room) {
		size_t room = r->room ? 2 * r->room : 4096;
		struct tn_store_entry *more = tn_get(r->alloc, room * sizeof(*more));

		if (!more)
			return UINT32_MAX;
		if (r->n > 0)
			memcpy(more, r->entry, r->n * sizeof(*more));
		tn_put(r->alloc, r->entry, r->room * sizeof(*more));
		r->entry = more;
		r->room = room;
	}
	r->entry[r->n] = *e;
	return (uint32_t)r->n++;
}

static void describe(void *arg, tn_slot slot, uint32_t cookie, struct tn_store_entry *e)
{
	*e = ((struct registry *)arg)->entry[cookie];
}

static int open_for(const struct tn_store_opts *opts, struct registry *r, struct tn_store **s)
{
	struct tn_store_opts o = *opts;

	*r = (struct registry){.alloc = o.alloc};
	o.cb = (struct tn_store_callbacks){.recovered = remember, .describe = describe, .arg = r};
	return tn_store_open(&o, s);
}

static void forget(struct registry *r)
{
	tn_put(r->alloc, r->entry, r->room * sizeof(*r->entry));
}

/* ---- info ------------------------------------------------------------------------------------------------------ */

static bool in_use(struct tn_store_device *d, uint64_t *left_ns)
{
	uint32_t file;
	int rc = tn_store_lock_wait(d, TN_IO_READ_ONLY, left_ns, &file);

	if (rc == 0)
		tn_io_close(d->store->io, file);
	return rc == -EBUSY;
}

static void tell(struct tn_store_device *d, struct tn_admin_device *a, uint64_t *left_ns)
{
	struct tn_store *s = d->store;
	const struct tn_disk_super *sb = &d->super;
	struct tn_io_stat st = {0};

	memset(a, 0, sizeof(*a));
	a->missing = d->absent;
	if (!d->absent)
		tn_io_stat(s->io, d->file, &st);
	memcpy(a->path, d->path, sizeof(a->path));
	memcpy(a->store_uuid, sb->store_uuid, sizeof(a->store_uuid));
	memcpy(a->device_uuid, sb->device_uuid, sizeof(a->device_uuid));
	a->device_index = sb->device_index;
	a->device_count = sb->device_count;
	a->format_version = sb->head.version;
	a->clean = sb->state == TN_DISK_CLEAN;
	a->in_use = !d->absent && in_use(d, left_ns);
	a->superblock_damaged = d->super_damaged;
	a->owner_pid = sb->owner_pid;
	a->created_wall_ns = sb->created_wall_ns;
	a->opened_wall_ns = sb->opened_wall_ns;
	a->file_bytes = st.size_bytes;
	a->index_bytes = sb->segments_offset;
	a->segment_bytes = sb->segment_bytes;
	a->segments = s->segment_count;
	a->segments_allocated = d->allocated;
	for (uint32_t i = 0; i < d->allocated; i++) {
		if (d->segs[i].shape == TN_SHAPE_NONE)
			continue;
		a->segments_assigned++;
		a->slots += s->shape[d->segs[i].shape].slot_count;
	}
	a->blocks = d->committed;
	a->quarantined = d->quarantined;
	a->log_bytes = sb->log_bytes;
	a->log_used_bytes = d->log.position - d->log.tail;
	a->checkpoints = d->ckpt.number;
	for (uint32_t i = 0; i < s->spaces->count; i++)
		a->spaces += !tn_key_is_zero(&s->spaces->space[i].id);
}

int tn_store_admin_info(const struct tn_store_opts *opts, struct tn_admin_device *device)
{
	struct tn_store_opts o = *opts;
	uint64_t left_ns = o.lock_timeout_ns; /* for all devices together: the devices have one owner */
	struct registry r;
	struct tn_store *s;
	int rc;

	o.read_only = o.inspect = true;
	rc = open_for(&o, &r, &s);
	/* The store has its devices in their order, the caller's is that of the directories. */
	for (uint32_t i = 0; i < o.ndirs && rc == 0; i++)
		for (uint32_t k = 0; k < s->ndevices; k++)
			if (strncmp(s->dev[k].path, o.dirs[i], strlen(o.dirs[i])) == 0 &&
			    strcmp(s->dev[k].path + strlen(o.dirs[i]), "/tenuto.store") == 0)
				tell(&s->dev[k], &device[i], &left_ns);
	if (rc == 0)
		tn_store_close(s);
	forget(&r);
	return rc;
}

/* ---- verify ---------------------------------------------------------------------------------------------------- */

int tn_store_admin_verify(const struct tn_store_opts *opts, const struct tn_admin_store *a, struct tn_admin_verify *out)
{
	struct tn_admin_verify v = {0};
	struct tn_store_opts o = *opts;
	struct registry r;
	struct tn_store *s;
	uint64_t stale;
	int rc;

	o.read_only = true;
	rc = open_for(&o, &r, &s);
	if (rc == 0) {
		rc = tn_store_walk(s, a, &v, &stale);
		tn_store_close(s);
	}
	forget(&r);
	if (rc == 0)
		*out = v;
	return rc;
}

/* ---- check -------------------------------------------------------------------------------------------------------- */

/* Counts what the store's own recovery complains about, and passes it on. */
struct listener {
	const struct tn_log *next;
	uint64_t problems;
	bool told; /* what is damaged was said when the store was opened before */
};

static void listen(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	struct listener *l = arg;

	if (level == TN_LOG_WARN && l->told)
		return;
	if (level <= TN_LOG_WARN)
		l->problems++;
	if (l->next && l->next->fn && level <= l->next->level)
		l->next->fn(l->next->arg, level, where, text);
}

/* A session without a device costs what the device holds: an engine decides that, not who repairs the other devices. */
static int all_there(const struct tn_store *s)
{
	for (uint32_t i = 0; i < s->ndevices; i++)
		if (s->dev[i].unreachable)
			return tn_fail(-ENODEV,
				       "%s, device %u of %u of the store, is not there: a repair of the others would cost its blocks; give all "
				       "directories, an empty one in place of one that is lost for good",
				       s->dev[i].path, i + 1, s->ndevices);
	return 0;
}

/* The devices that the repair could not make anew, because not even their directory is there. */
static uint64_t still_absent(const struct tn_store *s)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < s->ndevices; i++)
		n += s->dev[i].absent;
	return n;
}

static void count_salvage(const struct tn_store *s, struct tn_admin_check *c)
{
	for (uint32_t i = 0; i < s->ndevices; i++) {
		const struct tn_store_salvage *v = &s->dev[i].salvage;

		c->segments_restored += v->segments_without;
		c->segments_lost += v->segments_lost;
		c->headers_damaged += v->damaged;
		c->headers_unreadable += v->unreadable;
		c->blocks_superseded += v->superseded;
		c->blocks_dropped += v->dropped;
	}
}

int tn_store_admin_check(const struct tn_store_opts *opts, const struct tn_admin_store *a, bool rebuild,
			 struct tn_admin_check *out)
{
	struct listener l = {.next = opts->log};
	struct tn_log log = {listen, &l, TN_LOG_INFO};
	struct tn_admin_check c = {0};
	struct tn_store_opts o = *opts;
	struct registry r;
	struct tn_store *s;
	uint64_t absent;
	int rc;

	o.log = &log;
	o.read_only = true;
	rc = open_for(&o, &r, &s);
	if (rc == 0) {
		c.blocks = s->committed;
		rc = rebuild ? all_there(s) : 0;
		if (rc == 0)
			rc = tn_store_walk(s, a, NULL, &c.stale);
		tn_store_close(s);
		l.told = true;
	}
	forget(&r);
	if (rc == 0 && rebuild) {
		o.read_only = false;
		o.rebuild = true;
		rc = open_for(&o, &r, &s);
		if (rc == 0) {
			count_salvage(s, &c);
			c.blocks = s->committed;
			absent = still_absent(s); /* each was told as a problem, unless it went just now */
			c.repaired = l.problems > absent ? l.problems - absent : 0;
			rc = tn_store_close(s);
		}
		forget(&r);
	}
	c.problems = l.problems;
	if (rc == 0)
		*out = c;
	return rc;
}
