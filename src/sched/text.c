/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

int tn_text_fail(const struct tn_text *t, int code, const char *fmt, ...)
{
	unsigned line = t->line ? t->line : 1;
	char what[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return t->name ? tn_fail(code, "%s:%u: %s", t->name, line, what) : tn_fail(code, "line %u: %s", line, what);
}

bool tn_word_is(struct tn_word w, const char *s)
{
	return w.len == strlen(s) && memcmp(w.at, s, w.len) == 0;
}

bool tn_word_number(struct tn_word w, uint64_t least, uint64_t most, uint64_t *out)
{
	uint64_t n = 0;

	if (w.len == 0 || (w.len > 1 && w.at[0] == '0'))
		return false;
	for (size_t i = 0; i < w.len; i++)
		if (w.at[i] < '0' || w.at[i] > '9' || __builtin_mul_overflow(n, 10, &n) ||
		    __builtin_add_overflow(n, (uint64_t)(w.at[i] - '0'), &n))
			return false;
	*out = n;
	return n >= least && n <= most;
}

/* Cuts a line into its key and, behind one blank, its value. */
static int cut(struct tn_text *t, const char *line, size_t len)
{
	const char *blank = memchr(line, ' ', len);

	for (size_t i = 0; i < len; i++)
		if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
			return tn_text_fail(t, -EINVAL, "byte 0x%02x in the text", (unsigned char)line[i]);
	t->key = (struct tn_word){line, blank ? (size_t)(blank - line) : len};
	if (!blank || blank == line)
		return tn_text_fail(t, -EINVAL, "\"%.*s\": must be a key, one blank and a value", TN_WORD_SHOWN(t->key));
	t->value = (struct tn_word){blank + 1, len - t->key.len - 1};
	return 1;
}

int tn_text_next(struct tn_text *t)
{
	while (t->at < t->end) {
		const char *line = t->at, *end = memchr(line, '\n', (size_t)(t->end - line));

		t->line++;
		if (!end)
			return tn_text_fail(t, -EINVAL, "the last line has no end: the file is cut off");
		t->at = end + 1;
		if (end > line && *line != '#')
			return cut(t, line, (size_t)(end - line));
	}
	return 0;
}

int tn_text_version(struct tn_text *t, const char *magic, unsigned oldest, unsigned newest)
{
	int rc = tn_text_next(t);
	uint64_t v;

	if (rc < 0)
		return rc;
	if (rc == 0 || !tn_word_is(t->key, magic) || !tn_word_number(t->value, 0, UINT32_MAX, &v))
		return tn_text_fail(t, -EINVAL, "%s: must begin with \"%s %u\"", rc ? "another file" : "empty", magic, newest);
	if (v < oldest || v > newest)
		return tn_text_fail(t, -EPROTONOSUPPORT, "version %llu: this build knows version %u; make the file again",
				    (unsigned long long)v, newest);
	return (int)v;
}

int tn_text_key(const struct tn_text *t, const char *const *keys, unsigned n, unsigned *seen)
{
	unsigned k = 0;

	while (k < n && !tn_word_is(t->key, keys[k]))
		k++;
	if (k == n)
		return tn_text_fail(t, -EINVAL, "unknown key \"%.*s\"", TN_WORD_SHOWN(t->key));
	if (*seen & 1u << k)
		return tn_text_fail(t, -EINVAL, "%s is there twice", keys[k]);
	*seen |= 1u << k;
	return (int)k;
}
