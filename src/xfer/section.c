/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/section.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FIRST_CAPACITY 16u

/* What of a section's meta counts: memory has none, and an empty one is none. */
static const char *meta_of(uint32_t segment, const char *meta)
{
	return segment >= TN_XFER_BLOCK && meta && *meta ? meta : NULL;
}

struct tn_xfer_sec *tn_xfer_sec_new(enum tn_xfer_segment segment, const struct tn_xfer_section *section)
{
	struct tn_xfer_sec *sec = tn_get(&tn_alloc_system, sizeof(*sec));
	const char *meta = meta_of(segment, section->meta);

	if (!sec)
		return NULL;
	sec->segment = segment;
	sec->address = section->address;
	sec->end = tn_xfer_section_end(section);
	sec->device = section->device;
	sec->registrations = 1;
	sec->refs = 1;
	sec->shared_fd = -1;
	if (meta) {
		sec->meta = tn_get(&tn_alloc_system, strlen(meta) + 1);
		if (!sec->meta) {
			tn_put(&tn_alloc_system, sec, sizeof(*sec));
			return NULL;
		}
		memcpy(sec->meta, meta, strlen(meta) + 1);
	}
	return sec;
}

void tn_xfer_key_free(struct tn_xfer_section_key *key)
{
	if (key)
		tn_put(&tn_alloc_system, key, sizeof(*key) + key->bytes);
}

int tn_xfer_sec_set_key(struct tn_xfer_sec *sec, uint32_t backend, const void *data, uint32_t bytes)
{
	struct tn_xfer_section_key *key = tn_get(&tn_alloc_system, sizeof(*key) + bytes);

	if (!key)
		return -ENOMEM;
	key->section = sec->id;
	key->bytes = bytes;
	key->data = memcpy(key + 1, data, bytes);
	tn_xfer_key_free(sec->key[backend]);
	sec->key[backend] = key;
	return 0;
}

void tn_xfer_sec_put(struct tn_xfer_sec *sec)
{
	assert(sec->refs);
	if (--sec->refs)
		return;
	for (uint32_t i = 0; i < TN_XFER_BACKENDS_MAX; i++)
		tn_xfer_key_free(sec->key[i]);
	if (sec->mapped.base)
		munmap(sec->mapped.base, sec->mapped.bytes);
	if (sec->shared_fd >= 0)
		close(sec->shared_fd);
	if (sec->meta)
		tn_put(&tn_alloc_system, sec->meta, strlen(sec->meta) + 1);
	tn_put(&tn_alloc_system, sec, sizeof(*sec));
}

/* Where a section stands. */
struct key {
	uint32_t segment;
	uint64_t device, address, end;
};

static struct key key_of(const struct tn_xfer_sec *s)
{
	return (struct key){s->segment, s->device, s->address, s->end};
}

static int compare(struct key a, struct key b)
{
	if (a.segment != b.segment)
		return a.segment < b.segment ? -1 : 1;
	if (a.device != b.device)
		return a.device < b.device ? -1 : 1;
	if (a.address != b.address)
		return a.address < b.address ? -1 : 1;
	return (a.end > b.end) - (a.end < b.end);
}

static int compare_secs(const void *a, const void *b)
{
	return compare(key_of(*(struct tn_xfer_sec *const *)a), key_of(*(struct tn_xfer_sec *const *)b));
}

void tn_xfer_secs_sort(struct tn_xfer_sec **secs, uint32_t n)
{
	qsort(secs, n, sizeof(*secs), compare_secs);
}

/* First entry behind those at or before the key. */
static uint32_t upper(const struct tn_xfer_table *t, struct key key)
{
	uint32_t low = 0, high = t->n;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (compare(key_of(t->entry[mid].sec), key) <= 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static bool same_group(const struct tn_xfer_sec *a, const struct tn_xfer_sec *b)
{
	return a->segment == b->segment && a->device == b->device;
}

static void push(struct tn_xfer_table *t, struct tn_xfer_sec *sec)
{
	struct tn_xfer_sec_entry *e = &t->entry[t->n];

	*e = (struct tn_xfer_sec_entry){.sec = sec, .max_end = sec->end};
	if (t->n++ && same_group(sec, e[-1].sec) && e[-1].max_end > sec->end)
		e->max_end = e[-1].max_end;
}

static int reserve(struct tn_xfer_table *t, uint32_t n)
{
	uint32_t capacity = t->capacity ? t->capacity : FIRST_CAPACITY;
	struct tn_xfer_sec_entry *entry;

	if (n <= t->capacity)
		return 0;
	while (capacity < n)
		capacity *= 2;
	entry = tn_get(&tn_alloc_system, tn_array_bytes(capacity, sizeof(*entry)));
	if (!entry)
		return -ENOMEM;
	if (t->n)
		memcpy(entry, t->entry, t->n * sizeof(*entry));
	tn_put(&tn_alloc_system, t->entry, t->capacity * sizeof(*entry));
	t->entry = entry;
	t->capacity = capacity;
	return 0;
}

static void set_revoked(struct tn_xfer_sec *sec)
{
	sec->revoked = true;
	tn_xfer_sec_put(sec);
}

/* A section of the array that stands where the last one of the table does. */
static void meet(struct tn_xfer_table *t, struct tn_xfer_sec *sec, bool add)
{
	struct tn_xfer_sec *last = t->entry[t->n - 1].sec;

	if (!sec->id || sec->id == last->id) {
		last->registrations += sec->registrations;
		return;
	}
	t->n--;
	set_revoked(last);
	if (add) {
		sec->refs++;
		push(t, sec);
	}
}

int tn_xfer_table_merge(struct tn_xfer_table *t, struct tn_xfer_sec *const *secs, uint32_t n, unsigned how)
{
	bool add = how & TN_XFER_MERGE_ADD, prune = how & TN_XFER_MERGE_PRUNE;
	/* What stands before all of the array stays as it is. */
	uint32_t first = prune ? 0 : n ? upper(t, key_of(secs[0])) : t->n, nold = t->n - first, i = 0, k = 0;
	struct tn_xfer_sec_entry *old = nold ? tn_get(&tn_alloc_system, nold * sizeof(*old)) : NULL;

	if ((nold && !old) || reserve(t, t->n + (add ? n : 0))) {
		tn_put(&tn_alloc_system, old, nold * sizeof(*old));
		return -ENOMEM;
	}
	if (nold)
		memcpy(old, &t->entry[first], nold * sizeof(*old));
	t->n = first;
	while (i < nold || k < n) {
		int order = k == n ? -1 : i == nold ? 1 : compare(key_of(old[i].sec), key_of(secs[k]));

		if (k < n && t->n && !compare(key_of(t->entry[t->n - 1].sec), key_of(secs[k]))) {
			meet(t, secs[k++], add);
		} else if (order > 0) {
			if (add) {
				secs[k]->refs++;
				push(t, secs[k]);
			}
			k++;
		} else if (order < 0 && prune) {
			set_revoked(old[i++].sec);
		} else {
			push(t, old[i++].sec);
		}
	}
	tn_put(&tn_alloc_system, old, nold * sizeof(*old));
	return 0;
}

void tn_xfer_table_sweep(struct tn_xfer_table *t)
{
	uint32_t n = t->n;

	t->n = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct tn_xfer_sec *sec = t->entry[i].sec;

		if (sec->leaving)
			tn_xfer_sec_put(sec);
		else
			push(t, sec);
	}
}

struct tn_xfer_sec *tn_xfer_table_exact(const struct tn_xfer_table *t, enum tn_xfer_segment segment, const struct tn_xfer_section *section)
{
	struct key key = {segment, section->device, section->address, tn_xfer_section_end(section)};
	uint32_t i = upper(t, key);
	struct tn_xfer_sec *sec = i ? t->entry[i - 1].sec : NULL;
	const char *meta = meta_of(segment, section->meta);

	if (!sec || compare(key_of(sec), key) || (meta && sec->meta ? strcmp(meta, sec->meta) : meta || sec->meta))
		return NULL;
	return sec;
}

struct tn_xfer_sec *tn_xfer_table_sibling(const struct tn_xfer_table *t, uint32_t segment, uint64_t device)
{
	uint32_t i = upper(t, (struct key){segment, device, UINT64_MAX, UINT64_MAX});

	return i && t->entry[i - 1].sec->segment == segment && t->entry[i - 1].sec->device == device ? t->entry[i - 1].sec : NULL;
}

struct tn_xfer_sec *tn_xfer_table_cover(const struct tn_xfer_table *t, uint32_t segment, uint64_t device, uint64_t address, uint64_t end)
{
	for (uint32_t i = upper(t, (struct key){segment, device, address, UINT64_MAX}); i; i--) {
		const struct tn_xfer_sec_entry *e = &t->entry[i - 1];

		if (e->sec->segment != segment || e->sec->device != device || e->max_end < end)
			return NULL;
		if (e->sec->end >= end && !e->sec->revoked)
			return e->sec;
	}
	return NULL;
}

void tn_xfer_table_clear(struct tn_xfer_table *t)
{
	for (uint32_t i = 0; i < t->n; i++)
		tn_xfer_sec_put(t->entry[i].sec);
	tn_put(&tn_alloc_system, t->entry, t->capacity * sizeof(*t->entry));
	*t = (struct tn_xfer_table){0};
}
