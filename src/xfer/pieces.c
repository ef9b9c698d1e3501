/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/pieces.h"

#include <errno.h>

#include "base/error.h"

/* Makes pieces, or only counts them. */
struct maker {
	struct tn_xfer_piece *piece; /* NULL: only counts */
	uint64_t npieces;
	struct tn_xfer_piece last;
};

static void close_piece(struct maker *m)
{
	if (!m->last.bytes)
		return;
	if (m->piece)
		m->piece[m->npieces] = m->last;
	m->npieces++;
	m->last.bytes = 0;
}

static void add_bytes(struct maker *m, struct tn_xfer_piece p)
{
	struct tn_xfer_piece *last = &m->last;

	while (p.bytes) {
		uint64_t n = p.bytes < TN_XFER_PIECE_MAX ? p.bytes : TN_XFER_PIECE_MAX;

		if (last->bytes && last->local + last->bytes == p.local && last->remote + last->bytes == p.remote &&
		    last->local_section == p.local_section && last->remote_section == p.remote_section && last->bytes + n <= TN_XFER_PIECE_MAX) {
			last->bytes += n;
		} else {
			close_piece(m);
			*last = p;
			last->bytes = n;
		}
		p.local += n;
		p.remote += n;
		p.first += n;
		p.bytes -= n;
	}
}

static int check_index(const struct tn_xfer_list *l, const char *side, const uint32_t *index, uint64_t i)
{
	if (index && index[i] >= l->count)
		return tn_fail(-EINVAL, "%s index %llu is %u: the list has %llu descriptors", side, (unsigned long long)i, index[i],
			       (unsigned long long)l->count);
	return 0;
}

/* Goes over all descriptors. before: NULL, or filled in. */
static int walk(const struct tn_xfer_match *m, struct maker *maker, uint64_t *before)
{
	uint32_t local_hint = 0, remote_hint = 0;
	uint64_t bytes = 0;

	for (uint64_t i = 0; i < m->n; i++) {
		uint64_t li = m->local_index ? m->local_index[i] : i, ri = m->remote_index ? m->remote_index[i] : i;
		const struct tn_xfer_list_run *l, *r;
		int rc = check_index(m->local, "local", m->local_index, i);

		if (rc == 0)
			rc = check_index(m->remote, "remote", m->remote_index, i);
		if (rc)
			return rc;
		l = tn_xfer_list_find(m->local, li, &local_hint);
		r = tn_xfer_list_find(m->remote, ri, &remote_hint);
		if (l->bytes != r->bytes)
			return tn_fail(-EINVAL, "descriptor %llu has %llu bytes here and %llu there: they must be equal", (unsigned long long)i,
				       (unsigned long long)l->bytes, (unsigned long long)r->bytes);
		if (before)
			before[i] = bytes;
		add_bytes(maker, (struct tn_xfer_piece){.local = tn_xfer_list_address(l, li), .remote = tn_xfer_list_address(r, ri), .bytes = l->bytes,
							.first = bytes, .local_section = l->sec, .remote_section = r->sec});
		if (__builtin_add_overflow(bytes, l->bytes, &bytes))
			return tn_fail(-E2BIG, "descriptor %llu: the request has more than 2^64 bytes", (unsigned long long)i);
	}
	close_piece(maker);
	if (before)
		before[m->n] = bytes;
	return 0;
}

int tn_xfer_pieces_make(const struct tn_xfer_match *m, struct tn_xfer_pieces *out)
{
	struct maker maker = {0};
	int rc = walk(m, &maker, NULL);

	if (rc)
		return rc;
	if (maker.npieces > UINT32_MAX)
		return tn_fail(-E2BIG, "a request of %llu pieces of %u bytes: make several of it", (unsigned long long)maker.npieces, TN_XFER_PIECE_MAX);
	*out = (struct tn_xfer_pieces){.npieces = (uint32_t)maker.npieces, .n = m->n};
	out->piece = tn_get(&tn_alloc_system, tn_array_bytes(maker.npieces + 1, sizeof(*out->piece)));
	out->before = tn_get(&tn_alloc_system, tn_array_bytes(m->n + 1, sizeof(*out->before)));
	if (!out->piece || !out->before) {
		tn_xfer_pieces_free(out);
		return tn_fail(-ENOMEM, "no memory for a request of %llu descriptors", (unsigned long long)m->n);
	}
	maker = (struct maker){.piece = out->piece};
	return walk(m, &maker, out->before);
}

void tn_xfer_pieces_free(struct tn_xfer_pieces *p)
{
	tn_put(&tn_alloc_system, p->piece, tn_array_bytes((uint64_t)p->npieces + 1, sizeof(*p->piece)));
	tn_put(&tn_alloc_system, p->before, tn_array_bytes(p->n + 1, sizeof(*p->before)));
	*p = (struct tn_xfer_pieces){0};
}

/* The piece that has a byte of the request. */
static uint32_t find_piece(const struct tn_xfer_pieces *p, uint64_t byte)
{
	uint32_t low = 0, high = p->npieces;

	while (high - low > 1) {
		uint32_t mid = low + (high - low) / 2;

		if (p->piece[mid].first <= byte)
			low = mid;
		else
			high = mid;
	}
	return low;
}

/* The descriptor that has a byte of the request. */
static uint64_t find_descriptor(const struct tn_xfer_pieces *p, uint64_t byte)
{
	uint64_t low = 0, high = p->n;

	while (high - low > 1) {
		uint64_t mid = low + (high - low) / 2;

		if (p->before[mid] <= byte)
			low = mid;
		else
			high = mid;
	}
	return low;
}

/* Whether the status may be a neighbour's. Who has lost its peer, or was stopped, has failed for good. */
static bool is_doubtful(const struct tn_xfer_pieces *p, const struct tn_xfer_piece *piece)
{
	if (!piece->status || piece->status == -ECONNRESET || piece->status == -ECANCELED || piece->status == -ETIMEDOUT)
		return false;
	return piece->shared || p->before[find_descriptor(p, piece->first) + 1] < piece->first + piece->bytes;
}

/* The descriptors of a piece that were not moved, or not as a whole. Returns how many. */
static uint32_t split_piece(const struct tn_xfer_pieces *p, struct tn_xfer_piece *piece, struct tn_xfer_piece *out)
{
	uint64_t end = piece->first + piece->bytes, from = piece->first + piece->moved, last;
	uint32_t n = 0;

	for (uint64_t i = find_descriptor(p, from); from < end; from = last, i++) {
		struct tn_xfer_piece one = *piece;

		last = p->before[i + 1] < end ? p->before[i + 1] : end;
		one.first = p->before[i] > piece->first ? p->before[i] : piece->first;
		if (last <= one.first)
			continue; /* no bytes */
		one.local += one.first - piece->first;
		one.remote += one.first - piece->first;
		one.bytes = last - one.first;
		one.shared = 0;
		if (out) {
			piece->moved = n ? piece->moved : one.first - piece->first;
			piece->shared = TN_XFER_PIECE_SPLIT;
			out[n] = one;
			tn_xfer_piece_end(&out[n], 0, -EINPROGRESS);
		}
		n++;
	}
	return n;
}

int tn_xfer_pieces_split(struct tn_xfer_pieces *p, struct tn_xfer_pieces *out)
{
	uint64_t n = 0;

	*out = (struct tn_xfer_pieces){0};
	for (uint32_t i = 0; i < p->npieces; i++)
		n += is_doubtful(p, &p->piece[i]) ? split_piece(p, &p->piece[i], NULL) : 0;
	if (!n || n >= UINT32_MAX)
		return 0;
	out->piece = tn_get(&tn_alloc_system, tn_array_bytes(n + 1, sizeof(*out->piece)));
	if (!out->piece)
		return -ENOMEM;
	for (uint32_t i = 0; i < p->npieces; i++)
		out->npieces += is_doubtful(p, &p->piece[i]) ? split_piece(p, &p->piece[i], &out->piece[out->npieces]) : 0;
	return 0;
}

static void add_result(const struct tn_xfer_pieces *p, uint64_t from, uint64_t to, struct tn_xfer_result *out)
{
	for (uint32_t i = p->npieces ? find_piece(p, from) : 0; i < p->npieces && p->piece[i].first < to; i++) {
		const struct tn_xfer_piece *piece = &p->piece[i];
		int32_t status = __atomic_load_n(&piece->status, __ATOMIC_ACQUIRE);
		uint64_t end = piece->first + __atomic_load_n(&piece->moved, __ATOMIC_RELAXED);
		uint64_t first = piece->first > from ? piece->first : from, last = piece->first + piece->bytes < to ? piece->first + piece->bytes : to;

		if (end > first)
			out->bytes += (end < last ? end : last) - first;
		if (first < last && end < last && !out->status && (status == -EINPROGRESS || piece->shared != TN_XFER_PIECE_SPLIT))
			out->status = status;
	}
}

void tn_xfer_pieces_result(const struct tn_xfer_pieces *p, const struct tn_xfer_pieces *alone, uint64_t descriptor, struct tn_xfer_result *out)
{
	uint64_t from = p->before[descriptor], to = p->before[descriptor + 1];

	*out = (struct tn_xfer_result){0};
	if (from == to)
		return;
	add_result(p, from, to, out);
	add_result(alone, from, to, out);
}

int tn_xfer_pieces_sum(const struct tn_xfer_pieces *p, uint64_t *bytes)
{
	int rc = 0;

	for (uint32_t i = 0; i < p->npieces; i++) {
		const struct tn_xfer_piece *piece = &p->piece[i];
		uint64_t moved = __atomic_load_n(&piece->moved, __ATOMIC_RELAXED);
		int status = __atomic_load_n(&piece->status, __ATOMIC_ACQUIRE);

		*bytes += moved;
		/* `shared` of a piece that has not ended is its backend's. */
		if (rc == 0 && (status || moved != piece->bytes) && (status == -EINPROGRESS || piece->shared != TN_XFER_PIECE_SPLIT))
			rc = status ? status : -EIO;
	}
	return rc;
}

/* The first byte that a piece of that status lacks; UINT64_MAX: no piece has it. */
static uint64_t first_byte(const struct tn_xfer_pieces *p, int status)
{
	for (uint32_t i = 0; i < p->npieces; i++) {
		const struct tn_xfer_piece *piece = &p->piece[i];

		if (__atomic_load_n(&piece->status, __ATOMIC_ACQUIRE) == status && piece->shared != TN_XFER_PIECE_SPLIT)
			return piece->first + __atomic_load_n(&piece->moved, __ATOMIC_RELAXED);
	}
	return UINT64_MAX;
}

uint64_t tn_xfer_pieces_failed(const struct tn_xfer_pieces *p, const struct tn_xfer_pieces *alone, int status)
{
	uint64_t byte = first_byte(p, status), other = first_byte(alone, status);

	byte = byte < other ? byte : other;
	return byte == UINT64_MAX ? UINT64_MAX : find_descriptor(p, byte);
}
