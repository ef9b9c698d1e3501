/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict reading of small text files with one `key value` per line: slack tables and devices' mixes.
 *
 * Empty lines and lines that begin with '#' say nothing. Every other line has a key, one blank and a value; no byte is
 * a control character, and the last line ends, too: a file that was cut off is refused. Pure: the caller has the text.
 */
#ifndef TN_SCHED_TEXT_H
#define TN_SCHED_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tn_word {
	const char *at;
	size_t len;
};

/* As much of a word as fits a message, for "%.*s". */
#define TN_WORD_SHOWN(w) (int)((w).len < 40 ? (w).len : 40), (w).at

struct tn_text {
	const char *name; /* of the file, for messages; NULL: it has none */
	const char *at, *end; /* what is left */
	unsigned line;
	struct tn_word key, value; /* of that line */
};

/* The next line that says something. 1, 0 at the end of the text, or -EINVAL. */
int tn_text_next(struct tn_text *t);
/* The first line, which has to be `magic version`, from oldest to newest. The version, -EINVAL, or -EPROTONOSUPPORT for another one. */
int tn_text_version(struct tn_text *t, const char *magic, unsigned oldest, unsigned newest);
/* Which of n keys the line has; @seen collects one bit for each. -EINVAL for an unknown key, and for one seen before. */
int tn_text_key(const struct tn_text *t, const char *const *keys, unsigned n, unsigned *seen);

bool tn_word_is(struct tn_word w, const char *s);
/* A decimal number from least to most: digits only, without leading zeros. */
bool tn_word_number(struct tn_word w, uint64_t least, uint64_t most, uint64_t *out);

/* tn_fail with the place before the text: "NAME:LINE: ", or "line LINE: ". */
int tn_text_fail(const struct tn_text *t, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
