/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t digits(uint64_t n)
{
	return (size_t)snprintf(NULL, 0, "%" PRIu64, n);
}

static void set_read(struct redis_command *c, const struct object_transfer *t)
{
	uint64_t last = t->offset + t->bytes - 1;

	if (t->op == OBJECT_HEAD)
		c->head_bytes = (size_t)snprintf(c->head, sizeof(c->head), "*2\r\n$6\r\nSTRLEN\r\n$%zu\r\n%s\r\n", strlen(t->key), t->key);
	else
		c->head_bytes = (size_t)snprintf(c->head, sizeof(c->head), "*4\r\n$8\r\nGETRANGE\r\n$%zu\r\n%s\r\n$%zu\r\n%" PRIu64 "\r\n$%zu\r\n%" PRIu64 "\r\n",
						 strlen(t->key), t->key, digits(t->offset), t->offset, digits(last), last);
	c->tail_bytes = 0;
}

void redis_command_set(struct redis_command *c, const struct object_transfer *t, uint32_t ttl_s)
{
	unsigned words = 3 + (t->if_absent ? 1u : 0u) + (ttl_s ? 2u : 0u);

	if (t->op != OBJECT_PUT) {
		set_read(c, t);
		return;
	}
	c->head_bytes = (size_t)snprintf(c->head, sizeof(c->head), "*%u\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%" PRIu64 "\r\n", words, strlen(t->key), t->key, t->bytes);
	c->tail_bytes = (size_t)snprintf(c->tail, sizeof(c->tail), "\r\n%s", t->if_absent ? "$2\r\nNX\r\n" : "");
	if (ttl_s)
		c->tail_bytes += (size_t)snprintf(c->tail + c->tail_bytes, sizeof(c->tail) - c->tail_bytes, "$2\r\nEX\r\n$%zu\r\n%" PRIu32 "\r\n", digits(ttl_s), ttl_s);
}

size_t redis_hello(const char *user, const char *password, uint32_t db, char *out, size_t bytes, uint32_t *replies)
{
	int n = 0;

	*replies = (password ? 1u : 0u) + (db ? 1u : 0u);
	if (password && user)
		n = snprintf(out, bytes, "*3\r\n$4\r\nAUTH\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n", strlen(user), user, strlen(password), password);
	else if (password)
		n = snprintf(out, bytes, "*2\r\n$4\r\nAUTH\r\n$%zu\r\n%s\r\n", strlen(password), password);
	if (db && (size_t)n < bytes)
		n += snprintf(out + n, bytes - (size_t)n, "*2\r\n$6\r\nSELECT\r\n$%zu\r\n%" PRIu32 "\r\n", digits(db), db);
	return (size_t)n < bytes ? (size_t)n : 0;
}

uint32_t redis_slot(const char *key)
{
	const char *open = strchr(key, '{'), *close = open ? strchr(open + 1, '}') : NULL;
	size_t n = strlen(key);
	uint32_t crc = 0;

	if (close && close > open + 1) {
		key = open + 1;
		n = (size_t)(close - key);
	}
	for (size_t i = 0; i < n; i++) {
		crc ^= (uint32_t)(unsigned char)key[i] << 8;
		for (int bit = 0; bit < 8; bit++)
			crc = (crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1) & 0xffff;
	}
	return crc % REDIS_SLOTS;
}

/* "SLOT HOST:PORT": whether it can be followed. An IPv6 address has colons of its own: the last one counts. */
static bool read_place(const char *text, struct redis_error *out)
{
	char *end;
	unsigned long slot = strtoul(text, &end, 10), port;
	const char *host = end + 1, *colon;

	if (end == text || *end != ' ' || slot >= REDIS_SLOTS)
		return false;
	colon = strrchr(host, ':');
	if (!colon || (size_t)(colon - host) >= sizeof(out->host) || *host == '?')
		return false;
	port = strtoul(colon + 1, &end, 10);
	if (end == colon + 1 || *end || port < 1 || port > UINT16_MAX)
		return false;
	memcpy(out->host, host, (size_t)(colon - host));
	out->host[colon - host] = 0;
	out->slot = (uint32_t)slot;
	out->port = (uint32_t)port;
	return true;
}

void redis_error_read(const char *text, struct redis_error *out)
{
	static const struct {
		const char *word;
		enum redis_verdict verdict;
		int code;
	} known[] = {
		{"MOVED", REDIS_MOVED, -EIO},	{"ASK", REDIS_ASK, -EIO},	    {"OOM", REDIS_FAILED, -ENOSPC},	{"NOAUTH", REDIS_FAILED, -EACCES},
		{"WRONGPASS", REDIS_FAILED, -EACCES}, {"NOPERM", REDIS_FAILED, -EACCES}, {"READONLY", REDIS_FAILED, -EROFS}, {"TRYAGAIN", REDIS_AGAIN, -EIO},
		{"CLUSTERDOWN", REDIS_AGAIN, -EIO}, {"LOADING", REDIS_AGAIN, -EIO}, {"BUSY", REDIS_AGAIN, -EIO},	{"MASTERDOWN", REDIS_AGAIN, -EIO},
	};
	size_t word = strcspn(text, " ");

	*out = (struct redis_error){.verdict = REDIS_FAILED, .code = -EIO};
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strlen(known[i].word) == word && !memcmp(known[i].word, text, word)) {
			out->verdict = known[i].verdict;
			out->code = known[i].code;
		}
	if ((out->verdict == REDIS_MOVED || out->verdict == REDIS_ASK) && (!text[word] || !read_place(text + word + 1, out)))
		out->verdict = REDIS_FAILED;
}
