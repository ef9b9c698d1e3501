/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a device's mix: see mix.h. */
#include "sched/mix.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "sched/text.h"

#define MAGIC "tenuto-mix"

enum key { KEY_SOURCE = 6, KEY_SERVICE, KEYS };

static const char *const keys[KEYS] = {"read_bps",	   "write_bps",	 "mixed_bps", "read_latency_ns",
				       "write_latency_ns", "measured_s", "source",    "service"};

/* The numbers, which come first in keys: where each goes and what it may be. */
static const struct {
	size_t at;
	uint64_t least, most;
} numbers[KEY_SOURCE] = {
	{offsetof(struct tn_mix, read_bps), 1, TN_MIX_BPS_MAX},
	{offsetof(struct tn_mix, write_bps), 1, TN_MIX_BPS_MAX},
	{offsetof(struct tn_mix, mixed_bps), 1, TN_MIX_BPS_MAX},
	{offsetof(struct tn_mix, read_latency_ns), 0, TN_MIX_LATENCY_MAX_NS},
	{offsetof(struct tn_mix, write_latency_ns), 0, TN_MIX_LATENCY_MAX_NS},
	{offsetof(struct tn_mix, measured_s), 0, INT64_MAX},
};

static int set(const struct tn_text *t, int key, struct tn_mix *mix)
{
	struct tn_word w = t->value;
	uint64_t v;

	if (key < KEY_SOURCE) {
		if (!tn_word_number(w, numbers[key].least, numbers[key].most, &v))
			return tn_text_fail(t, -EINVAL, "%s \"%.*s\": must be a whole number, %llu to %llu", keys[key],
					    TN_WORD_SHOWN(w), (unsigned long long)numbers[key].least,
					    (unsigned long long)numbers[key].most);
		memcpy((char *)mix + numbers[key].at, &v, sizeof(v));
	} else if (key == KEY_SERVICE) {
		if (!tn_word_is(w, "share") && !tn_word_is(w, "order"))
			return tn_text_fail(t, -EINVAL, "service \"%.*s\": must be order or share", TN_WORD_SHOWN(w));
		mix->service = tn_word_is(w, "share") ? TN_MIX_SHARE : TN_MIX_ORDER;
	} else {
		if (w.len == 0 || w.len >= sizeof(mix->source))
			return tn_text_fail(t, -EINVAL, "source has %zu bytes: must have 1 to %zu", w.len, sizeof(mix->source) - 1);
		memcpy(mix->source, w.at, w.len);
	}
	return 0;
}

int tn_mix_parse(const char *text, size_t bytes, const char *name, struct tn_mix *out)
{
	struct tn_text t = {.name = name, .at = text, .end = text + bytes};
	struct tn_mix mix = {.version = TN_MIX_VERSION};
	unsigned seen = 0;
	int rc;

	if (bytes > TN_MIX_BYTES_MAX)
		return tn_text_fail(&t, -EINVAL, "%zu bytes, at most %u", bytes, TN_MIX_BYTES_MAX);
	rc = tn_text_version(&t, MAGIC, TN_MIX_VERSION, TN_MIX_VERSION);
	rc = rc < 0 ? rc : 0;
	while (rc == 0 && (rc = tn_text_next(&t)) > 0) {
		rc = tn_text_key(&t, keys, KEYS, &seen);
		rc = rc < 0 ? rc : set(&t, rc, &mix);
	}
	for (unsigned k = 0; rc == 0 && k <= KEY_SOURCE; k++)
		if (!(seen & 1u << k))
			rc = tn_text_fail(&t, -EINVAL, "%s is missing", keys[k]);
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
