/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a device's mix: see mix.h. */
#include "sched/mix.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

#define MAGIC "tenuto-mix"

struct line {
	const char *name; /* of the file */
	unsigned number;
	const char *key, *value;
	size_t key_len, value_len;
};

/* The numbers: where each goes and what it may be. */
static const struct field {
	const char *key;
	size_t at;
	uint64_t least, most;
} fields[] = {
	{"read_bps", offsetof(struct tn_mix, read_bps), 1, TN_MIX_BPS_MAX},
	{"write_bps", offsetof(struct tn_mix, write_bps), 1, TN_MIX_BPS_MAX},
	{"mixed_bps", offsetof(struct tn_mix, mixed_bps), 1, TN_MIX_BPS_MAX},
	{"read_latency_ns", offsetof(struct tn_mix, read_latency_ns), 0, TN_MIX_LATENCY_MAX_NS},
	{"write_latency_ns", offsetof(struct tn_mix, write_latency_ns), 0, TN_MIX_LATENCY_MAX_NS},
	{"measured_s", offsetof(struct tn_mix, measured_s), 0, INT64_MAX},
};

#define FIELDS (sizeof(fields) / sizeof(fields[0]))
#define SOURCE_SEEN (1u << FIELDS)
#define SERVICE_SEEN (SOURCE_SEEN << 1)

/* As much of a piece of the text as fits a message. */
#define SHOWN(text, len) (int)((len) < 40 ? (len) : 40), (text)

static uint64_t *number_of(struct tn_mix *mix, const struct field *f)
{
	return (uint64_t *)(void *)((char *)mix + f->at);
}

static bool is(const char *text, size_t len, const char *word)
{
	return len == strlen(word) && memcmp(text, word, len) == 0;
}

/* Decimal digits and nothing else; false: it is not, or too large for 64 bits. */
static bool to_number(const char *text, size_t len, uint64_t *out)
{
	uint64_t v = 0;

	for (size_t i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9' || __builtin_mul_overflow(v, 10, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(text[i] - '0'), &v))
			return false;
	}
	*out = v;
	return len > 0;
}

static int set_number(const struct line *l, const struct field *f, struct tn_mix *mix)
{
	uint64_t v;

	if (!to_number(l->value, l->value_len, &v) || v < f->least || v > f->most)
		return tn_fail(-EINVAL, "%s:%u: %s \"%.*s\": must be a whole number, %llu to %llu", l->name, l->number, f->key,
			       SHOWN(l->value, l->value_len), (unsigned long long)f->least, (unsigned long long)f->most);
	*number_of(mix, f) = v;
	return 0;
}

static int set_source(const struct line *l, struct tn_mix *mix)
{
	if (l->value_len == 0 || l->value_len >= sizeof(mix->source))
		return tn_fail(-EINVAL, "%s:%u: source has %zu bytes: must have 1 to %zu", l->name, l->number, l->value_len,
			       sizeof(mix->source) - 1);
	memcpy(mix->source, l->value, l->value_len);
	mix->source[l->value_len] = '\0';
	return 0;
}

static int set_service(const struct line *l, struct tn_mix *mix)
{
	bool share = is(l->value, l->value_len, "share");

	if (!share && !is(l->value, l->value_len, "order"))
		return tn_fail(-EINVAL, "%s:%u: service \"%.*s\": must be order or share", l->name, l->number,
			       SHOWN(l->value, l->value_len));
	mix->service = share ? TN_MIX_SHARE : TN_MIX_ORDER;
	return 0;
}

static int set_version(const struct line *l, struct tn_mix *mix)
{
	uint64_t v;

	if (!is(l->key, l->key_len, MAGIC) || !to_number(l->value, l->value_len, &v))
		return tn_fail(-EINVAL, "%s:%u: not a device's mix: must begin with \"" MAGIC " %u\"", l->name, l->number,
			       TN_MIX_VERSION);
	if (v != TN_MIX_VERSION)
		return tn_fail(-EPROTONOSUPPORT, "%s:%u: version %llu, this program knows %u: measure it again", l->name,
			       l->number, (unsigned long long)v, TN_MIX_VERSION);
	mix->version = TN_MIX_VERSION;
	return 0;
}

static int set(const struct line *l, struct tn_mix *mix, unsigned *seen)
{
	unsigned i = 0, bit;

	if (mix->version == 0)
		return set_version(l, mix);
	while (i < FIELDS && !is(l->key, l->key_len, fields[i].key))
		i++;
	bit = 1u << i;
	if (is(l->key, l->key_len, "service"))
		bit = SERVICE_SEEN;
	else if (i == FIELDS && !is(l->key, l->key_len, "source"))
		return tn_fail(-EINVAL, "%s:%u: unknown key \"%.*s\"", l->name, l->number, SHOWN(l->key, l->key_len));
	if (*seen & bit)
		return tn_fail(-EINVAL, "%s:%u: %.*s is there twice", l->name, l->number, SHOWN(l->key, l->key_len));
	*seen |= bit;
	if (bit == SERVICE_SEEN)
		return set_service(l, mix);
	return i == FIELDS ? set_source(l, mix) : set_number(l, &fields[i], mix);
}

/* Cuts the line into its key and, behind one blank, its value. */
static int cut(struct line *l, const char *text, size_t len)
{
	const char *blank = memchr(text, ' ', len);

	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
			return tn_fail(-EINVAL, "%s:%u: byte 0x%02x in the text", l->name, l->number, (unsigned char)text[i]);
	if (!blank || blank == text)
		return tn_fail(-EINVAL, "%s:%u: \"%.*s\": must be a key, one blank and a value", l->name, l->number,
			       SHOWN(text, len));
	l->key = text;
	l->key_len = (size_t)(blank - text);
	l->value = blank + 1;
	l->value_len = len - l->key_len - 1;
	return 0;
}

static int check_whole(const char *name, unsigned lines, const struct tn_mix *mix, unsigned seen)
{
	if (mix->version == 0)
		return tn_fail(-EINVAL, "%s:%u: empty: must begin with \"" MAGIC " %u\"", name, lines, TN_MIX_VERSION);
	for (unsigned i = 0; i < FIELDS; i++)
		if (!(seen & 1u << i))
			return tn_fail(-EINVAL, "%s:%u: %s is missing", name, lines, fields[i].key);
	if (!(seen & SOURCE_SEEN))
		return tn_fail(-EINVAL, "%s:%u: source is missing", name, lines);
	return 0;
}

int tn_mix_parse(const char *text, size_t bytes, const char *name, struct tn_mix *out)
{
	struct tn_mix mix = {0};
	struct line l = {.name = name, .number = 1};
	unsigned seen = 0;
	size_t at = 0;
	int rc;

	if (bytes > TN_MIX_BYTES_MAX)
		return tn_fail(-EINVAL, "%s:1: %zu bytes, at most %u", name, bytes, TN_MIX_BYTES_MAX);
	for (; at < bytes; l.number++) {
		const char *end = memchr(text + at, '\n', bytes - at);
		size_t len;

		if (!end)
			return tn_fail(-EINVAL, "%s:%u: the last line has no end: the file is cut off", name, l.number);
		len = (size_t)(end - (text + at));
		if (len && text[at] != '#') {
			rc = cut(&l, text + at, len);
			if (rc == 0)
				rc = set(&l, &mix, &seen);
			if (rc)
				return rc;
		}
		at += len + 1;
	}
	rc = check_whole(name, l.number > 1 ? l.number - 1 : 1, &mix, seen);
	if (rc == 0)
		*out = mix;
	return rc;
}

int tn_mix_print(const struct tn_mix *mix, char *buf, size_t size)
{
	struct tn_mix back;
	int n = snprintf(buf, size,
			 MAGIC " %u\nsource %s\nmeasured_s %llu\nread_bps %llu\nwrite_bps %llu\nmixed_bps %llu\n"
			       "read_latency_ns %llu\nwrite_latency_ns %llu\n%s",
			 mix->version, mix->source, (unsigned long long)mix->measured_s, (unsigned long long)mix->read_bps,
			 (unsigned long long)mix->write_bps, (unsigned long long)mix->mixed_bps,
			 (unsigned long long)mix->read_latency_ns, (unsigned long long)mix->write_latency_ns,
			 mix->service == TN_MIX_SHARE ? "service share\n" : ""); /* older readers know no such key */

	if (n < 0 || (size_t)n >= size)
		return tn_fail(-ENOSPC, "a mix of %d bytes does not fit %zu", n, size);
	return tn_mix_parse(buf, (size_t)n, "mix", &back) ? -EINVAL : n;
}
