/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that leave the process: a writer and a reader with bounds. Numbers are little-endian, as the hosts are.
 *
 * Both remember that something did not fit: whoever uses them asks once, at the end. A writer without a buffer only counts.
 */
#ifndef TN_XFER_CODEC_H
#define TN_XFER_CODEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct tn_xfer_writer {
	unsigned char *out; /* NULL: only counts */
	uint64_t bytes;	    /* written, or that would have been */
	uint64_t max;
};

static inline void tn_xfer_write(struct tn_xfer_writer *w, const void *from, uint64_t bytes)
{
	if (bytes && w->out && w->bytes + bytes <= w->max)
		memcpy(w->out + w->bytes, from, bytes);
	w->bytes += bytes;
}

static inline void tn_xfer_write_u32(struct tn_xfer_writer *w, uint32_t v)
{
	tn_xfer_write(w, &v, sizeof(v));
}

static inline void tn_xfer_write_u64(struct tn_xfer_writer *w, uint64_t v)
{
	tn_xfer_write(w, &v, sizeof(v));
}

/* Length, then bytes. */
static inline void tn_xfer_write_block(struct tn_xfer_writer *w, const void *from, uint32_t bytes)
{
	tn_xfer_write_u32(w, bytes);
	tn_xfer_write(w, from, bytes);
}

struct tn_xfer_reader {
	const unsigned char *in;
	uint64_t left;
	bool broken; /* more was asked for than there was */
};

/* The next bytes, or NULL. */
static inline const unsigned char *tn_xfer_read(struct tn_xfer_reader *r, uint64_t bytes)
{
	const unsigned char *at = r->in;

	if (r->broken || bytes > r->left) {
		r->broken = true;
		return NULL;
	}
	r->in += bytes;
	r->left -= bytes;
	return at;
}

static inline uint32_t tn_xfer_read_u32(struct tn_xfer_reader *r)
{
	const unsigned char *at = tn_xfer_read(r, sizeof(uint32_t));
	uint32_t v = 0;

	if (at)
		memcpy(&v, at, sizeof(v));
	return v;
}

static inline uint64_t tn_xfer_read_u64(struct tn_xfer_reader *r)
{
	const unsigned char *at = tn_xfer_read(r, sizeof(uint64_t));
	uint64_t v = 0;

	if (at)
		memcpy(&v, at, sizeof(v));
	return v;
}

static inline const unsigned char *tn_xfer_read_block(struct tn_xfer_reader *r, uint32_t most, uint32_t *bytes)
{
	*bytes = tn_xfer_read_u32(r);
	if (*bytes > most)
		r->broken = true;
	return tn_xfer_read(r, *bytes);
}

/* A block as text with a zero at its end; false: it does not fit, or has a zero inside. */
static inline bool tn_xfer_read_text(struct tn_xfer_reader *r, char *out, uint32_t out_bytes)
{
	uint32_t n;
	const unsigned char *at = tn_xfer_read_block(r, out_bytes - 1, &n);

	if (!at || memchr(at, 0, n)) {
		r->broken = true;
		return false;
	}
	memcpy(out, at, n);
	out[n] = 0;
	return true;
}

#endif
