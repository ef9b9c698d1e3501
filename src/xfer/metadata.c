/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/metadata.h"

#include <errno.h>

#include "base/error.h"
#include "base/hash.h"
#include "xfer/codec.h"

#define METADATA_MAGIC 0x4d584e54u /* "TNXM" */
#define RUNS_MAGIC 0x52584e54u	   /* "TNXR" */
#define VERSION 1u
#define KNOWN_FLAGS (TN_XFER_META_PARTIAL | TN_XFER_META_KEY | TN_XFER_META_SIGNED)
#define FRAME_BYTES 24u /* magic, version, all bytes, checksum of those behind the frame */

/* A section, as it is written. */
struct record {
	uint64_t id, address, end, device;
	uint32_t segment, backends;
};

static void write_frame(unsigned char *out, uint64_t bytes, uint32_t magic)
{
	struct tn_xfer_writer frame = {out, 0, FRAME_BYTES};

	tn_xfer_write_u32(&frame, magic);
	tn_xfer_write_u32(&frame, VERSION);
	tn_xfer_write_u64(&frame, bytes);
	tn_xfer_write_u64(&frame, tn_hash64(out + FRAME_BYTES, bytes - FRAME_BYTES));
}

static int read_frame(struct tn_xfer_reader *r, uint32_t magic, const char *what)
{
	uint64_t all = r->left, bytes, sum;
	uint32_t version;

	if (tn_xfer_read_u32(r) != magic || r->broken)
		return tn_fail(-EBADMSG, "%s of %llu bytes: it does not begin as %s does", what, (unsigned long long)all, what);
	version = tn_xfer_read_u32(r);
	bytes = tn_xfer_read_u64(r);
	sum = tn_xfer_read_u64(r);
	if (r->broken)
		return tn_fail(-EBADMSG, "%s of %llu bytes: cut within its first %u bytes", what, (unsigned long long)all, FRAME_BYTES);
	if (version != VERSION)
		return tn_fail(-EPROTONOSUPPORT, "%s of version %u: this library knows version %u, use the same one on both sides", what, version, VERSION);
	if (bytes != all)
		return tn_fail(-EBADMSG, "%s of %llu bytes: it was made with %llu", what, (unsigned long long)all, (unsigned long long)bytes);
	if (sum != tn_hash64(r->in, r->left))
		return tn_fail(-EBADMSG, "%s of %llu bytes: the checksum is wrong, bytes have changed on the way", what, (unsigned long long)all);
	return 0;
}

/* Behind the sections: how many keys, then for each the index of its section, of its agent's backend, and bytes. */
static void write_keys(struct tn_xfer_writer *w, struct tn_xfer_sec *const *secs, uint32_t n)
{
	struct tn_xfer_writer count = {w->out ? w->out + w->bytes : NULL, 0, w->bytes < w->max ? w->max - w->bytes : 0};
	uint32_t keys = 0;

	tn_xfer_write_u32(w, 0);
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = 0; k < TN_XFER_BACKENDS_MAX; k++) {
			const struct tn_xfer_section_key *key = secs[i]->key[k];

			if (!key)
				continue;
			keys++;
			tn_xfer_write_u32(w, i);
			tn_xfer_write_u32(w, k);
			tn_xfer_write_block(w, key->data, key->bytes);
		}
	}
	tn_xfer_write_u32(&count, keys);
}

uint64_t tn_xfer_metadata_pack(const struct tn_xfer_head *head, struct tn_xfer_sec *const *secs, uint32_t n, void *out, uint64_t max)
{
	struct tn_xfer_writer w = {out, FRAME_BYTES, max};

	tn_xfer_write_u32(&w, head->flags);
	tn_xfer_write_u64(&w, head->generation);
	tn_xfer_write_u64(&w, head->revision);
	tn_xfer_write(&w, head->boot, sizeof(head->boot));
	tn_xfer_write_block(&w, head->name, (uint32_t)strlen(head->name));
	tn_xfer_write_block(&w, head->address, (uint32_t)strlen(head->address));
	if (head->flags & TN_XFER_META_KEY)
		tn_xfer_write(&w, head->key, sizeof(head->key));
	tn_xfer_write_u32(&w, head->nbackends);
	for (uint32_t i = 0; i < head->nbackends; i++) {
		const struct tn_xfer_identity *b = &head->backend[i];

		tn_xfer_write_block(&w, b->name, (uint32_t)strlen(b->name));
		tn_xfer_write_block(&w, b->identity, b->bytes);
	}
	tn_xfer_write_u32(&w, n);
	for (uint32_t i = 0; i < n; i++) {
		const struct tn_xfer_sec *s = secs[i];
		struct record r = {s->id, s->address, s->end, s->device, s->segment, s->backends};

		tn_xfer_write(&w, &r, sizeof(r));
	}
	write_keys(&w, secs, n);
	return w.bytes + (head->flags & TN_XFER_META_SIGNED ? TN_XFER_MAC_BYTES : 0);
}

int tn_xfer_metadata_seal(void *packed, uint64_t bytes, const void *key, size_t key_bytes)
{
	unsigned char *at = packed, *mac = at + bytes - TN_XFER_MAC_BYTES;
	uint32_t flags;
	int rc = 0;

	memcpy(&flags, at + FRAME_BYTES, sizeof(flags));
	if (flags & TN_XFER_META_SIGNED)
		rc = tn_xfer_hmac(key, key_bytes, at + FRAME_BYTES, bytes - FRAME_BYTES - TN_XFER_MAC_BYTES, mac);
	write_frame(at, bytes, METADATA_MAGIC);
	return rc;
}

static void read_head(struct tn_xfer_reader *r, struct tn_xfer_head *head)
{
	const unsigned char *key = NULL;

	*head = (struct tn_xfer_head){.flags = tn_xfer_read_u32(r)};
	head->generation = tn_xfer_read_u64(r);
	head->revision = tn_xfer_read_u64(r);
	head->boot[0] = tn_xfer_read_u64(r);
	head->boot[1] = tn_xfer_read_u64(r);
	tn_xfer_read_text(r, head->name, sizeof(head->name));
	tn_xfer_read_text(r, head->address, sizeof(head->address));
	if (head->flags & TN_XFER_META_KEY)
		key = tn_xfer_read(r, sizeof(head->key));
	if (key)
		memcpy(head->key, key, sizeof(head->key));
	head->nbackends = tn_xfer_read_u32(r);
	if (head->nbackends > TN_XFER_BACKENDS_MAX || !head->name[0] || head->flags & ~KNOWN_FLAGS)
		r->broken = true;
	for (uint32_t i = 0; i < head->nbackends && !r->broken; i++) {
		struct tn_xfer_identity *b = &head->backend[i];
		const unsigned char *at;

		tn_xfer_read_text(r, b->name, sizeof(b->name));
		at = tn_xfer_read_block(r, sizeof(b->identity), &b->bytes);
		if (at)
			memcpy(b->identity, at, b->bytes);
	}
}

/* Takes the HMAC off the end. Bytes of another use of the key do not pass for metadata: their first ones are no flags of it. */
static int check_mac(struct tn_xfer_reader *r, const void *key, size_t key_bytes)
{
	unsigned char mac[TN_XFER_MAC_BYTES];
	uint32_t flags = 0;
	int rc = 0;

	if (r->left >= sizeof(flags))
		memcpy(&flags, r->in, sizeof(flags));
	if (flags & TN_XFER_META_SIGNED && r->left >= sizeof(flags) + sizeof(mac)) {
		r->left -= sizeof(mac);
		if (key)
			rc = tn_xfer_hmac(key, key_bytes, r->in, r->left, mac);
		if (key && rc == 0 && !tn_xfer_mac_equal(mac, r->in + r->left))
			rc = tn_fail(-EACCES, "metadata was signed with another secret, or changed by somebody who does not have it");
	} else if (key) {
		rc = tn_fail(-EACCES, "metadata is not signed with the shared secret: give both agents the same one");
	}
	return rc;
}

static int read_keys(struct tn_xfer_reader *r, struct tn_xfer_metadata *m)
{
	uint32_t n = tn_xfer_read_u32(r);
	int rc = 0;

	while (n-- && !r->broken && rc == 0) {
		uint32_t section = tn_xfer_read_u32(r), backend = tn_xfer_read_u32(r), bytes;
		const unsigned char *data = tn_xfer_read_block(r, TN_XFER_SECTION_KEY_MAX, &bytes);

		if (!data || !bytes || section >= m->n || backend >= m->head.nbackends)
			r->broken = true;
		else
			rc = tn_xfer_sec_set_key(m->sec[section], backend, data, bytes);
	}
	if (r->broken || r->left)
		return tn_fail(-EBADMSG, "metadata of agent %.40s: its parts do not fit its length", m->head.name);
	return rc ? tn_fail(rc, "no memory for the keys of sections") : 0;
}

static int read_sections(struct tn_xfer_reader *r, struct tn_xfer_metadata *m)
{
	uint32_t n = tn_xfer_read_u32(r);
	const unsigned char *at = tn_xfer_read(r, (uint64_t)n * sizeof(struct record));

	if (r->broken || n > TN_XFER_SECTIONS_MAX)
		return tn_fail(-EBADMSG, "metadata of agent %.40s: its parts do not fit its length", m->head.name);
	m->capacity = n + 1;
	m->sec = tn_get(&tn_alloc_system, m->capacity * sizeof(*m->sec));
	if (!m->sec)
		return tn_fail(-ENOMEM, "no memory for metadata of %u sections", n);
	for (; m->n < n; m->n++, at += sizeof(struct record)) {
		struct tn_xfer_sec *sec;
		struct record s;

		memcpy(&s, at, sizeof(s));
		if (s.segment >= TN_XFER_SEGMENTS || s.address >= s.end)
			return tn_fail(-EBADMSG, "metadata of agent %s: section %u of segment %u has no bytes", m->head.name, m->n, s.segment);
		sec = tn_xfer_sec_new(s.segment, &(struct tn_xfer_section){s.address, s.end == UINT64_MAX ? 0 : s.end - s.address, s.device, NULL});
		if (!sec)
			return tn_fail(-ENOMEM, "no memory for metadata of %u sections", n);
		sec->id = s.id;
		sec->backends = s.backends;
		m->sec[m->n] = sec;
	}
	return 0;
}

int tn_xfer_metadata_unpack(const void *bytes, uint64_t n_bytes, const void *key, size_t key_bytes, struct tn_xfer_metadata *out)
{
	struct tn_xfer_reader r = {bytes, n_bytes, false};
	int rc = n_bytes > TN_XFER_METADATA_MAX ? tn_fail(-EBADMSG, "metadata of %llu bytes: at most %u", (unsigned long long)n_bytes, TN_XFER_METADATA_MAX)
						: read_frame(&r, METADATA_MAGIC, "metadata");

	out->sec = NULL;
	out->n = 0;
	if (rc == 0)
		rc = check_mac(&r, key, key_bytes);
	if (rc)
		return rc;
	read_head(&r, &out->head);
	rc = read_sections(&r, out);
	if (rc == 0)
		rc = read_keys(&r, out);
	if (rc)
		tn_xfer_metadata_free(out);
	else
		tn_xfer_secs_sort(out->sec, out->n);
	return rc;
}

void tn_xfer_metadata_free(struct tn_xfer_metadata *m)
{
	while (m->n)
		tn_xfer_sec_put(m->sec[--m->n]);
	tn_put(&tn_alloc_system, m->sec, m->capacity * sizeof(*m->sec));
	m->sec = NULL;
}

/* ---- runs ------------------------------------------------------------------------------------------------------------ */

/* Whether both are one run, and makes it of the first. */
static bool join(struct tn_xfer_run *a, const struct tn_xfer_run *b)
{
	uint64_t last, stride;

	if (a->bytes != b->bytes || a->device != b->device)
		return false;
	last = a->address + (a->count - 1) * (a->count > 1 ? a->stride : 0);
	stride = b->address - last;
	if ((a->count > 1 && stride != a->stride) || (b->count > 1 && stride != b->stride) || b->address < last)
		return false;
	a->stride = stride;
	a->count += b->count;
	return true;
}

int64_t tn_xfer_runs_pack(enum tn_xfer_segment segment, const struct tn_xfer_run *runs, uint32_t n, void *out, size_t bytes)
{
	struct tn_xfer_writer w = {out, FRAME_BYTES, bytes};
	uint32_t written = 0;

	if ((n && !runs) || segment >= TN_XFER_SEGMENTS)
		return tn_fail(-EINVAL, "%u runs at %p of segment %d: an array and a segment are wanted", n, (const void *)runs, (int)segment);
	tn_xfer_write_u32(&w, segment);
	for (uint32_t i = 0; i < n; written++) {
		struct tn_xfer_run r = runs[i++];

		if (!r.count)
			return tn_fail(-EINVAL, "run %u has no descriptors: its count is 0", i - 1);
		while (i < n && runs[i].count && join(&r, &runs[i]))
			i++;
		if (r.count == 1)
			r.stride = 0;
		tn_xfer_write(&w, &r, sizeof(r));
	}
	if (out && w.bytes <= bytes)
		write_frame(out, w.bytes, RUNS_MAGIC);
	return (int64_t)w.bytes;
}

int64_t tn_xfer_runs_unpack(const void *packed, size_t bytes, enum tn_xfer_segment *segment, struct tn_xfer_run *runs, uint32_t max)
{
	struct tn_xfer_reader r = {packed, bytes, false};
	uint64_t n, count = 0;
	uint32_t seg;
	int rc;

	if (!packed || !segment)
		return tn_fail(-EINVAL, "runs at %p into segment %p: both are wanted", packed, (void *)segment);
	rc = read_frame(&r, RUNS_MAGIC, "a list of runs");
	if (rc)
		return rc;
	seg = tn_xfer_read_u32(&r);
	n = r.left / sizeof(struct tn_xfer_run);
	if (r.broken || r.left % sizeof(struct tn_xfer_run) || seg >= TN_XFER_SEGMENTS || n > TN_XFER_DESCRIPTORS_MAX)
		return tn_fail(-EBADMSG, "a list of runs of %zu bytes: its parts do not fit its length", bytes);
	for (uint64_t i = 0; i < n; i++) {
		struct tn_xfer_run run;

		memcpy(&run, r.in + i * sizeof(run), sizeof(run));
		if (!run.count || run.count > TN_XFER_DESCRIPTORS_MAX - count)
			return tn_fail(-EBADMSG, "a list of runs of %zu bytes: run %llu has %llu descriptors, a list has 1 per run at least and %u at most", bytes,
				       (unsigned long long)i, (unsigned long long)run.count, TN_XFER_DESCRIPTORS_MAX);
		count += run.count;
		if (i < max && runs)
			runs[i] = run;
	}
	*segment = seg;
	return (int64_t)n;
}
