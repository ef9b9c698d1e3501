/* SPDX-License-Identifier: Apache-2.0 */
#include "clients.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct client_rules {
	struct tn_serve_opts opts;
	struct tn_serve_rule rule[CLIENTS_MAX];
	struct tn_quota quota[CLIENTS_MAX];
	char token[CLIENTS_MAX][TN_SERVE_TOKEN_BYTES];
};

void client_init(struct client *c)
{
	*c = (struct client){.uid = CLIENT_ANY, .max_priority = 127, .host_quota = UINT64_MAX, .disk_quota = UINT64_MAX};
}

int client_check(const struct client *c, char *why, size_t bytes)
{
	if (c->uid != CLIENT_ANY || c->token_file)
		return 0;
	snprintf(why, bytes, "neither uid nor token_file: it would let everybody in. Write one of them, such as uid: 1000");
	return -EINVAL;
}

static bool same_text(const char *a, const char *b)
{
	return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool same(const struct client *a, const struct client *b)
{
	bool equal = a->uid == b->uid && same_text(a->token_file, b->token_file) && a->tenants.n == b->tenants.n &&
		     a->read_only == b->read_only && a->max_priority == b->max_priority && a->host_quota == b->host_quota &&
		     a->disk_quota == b->disk_quota && a->max_memory == b->max_memory;

	for (size_t i = 0; equal && i < a->tenants.n; i++)
		equal = strcmp(a->tenants.item[i], b->tenants.item[i]) == 0;
	return equal;
}

bool clients_same(const struct clients *a, const struct clients *b)
{
	bool equal = a->n == b->n;

	for (uint32_t i = 0; equal && i < a->n; i++)
		equal = same(&a->item[i], &b->item[i]);
	return equal;
}

/* Of a regular file: a FIFO would wait for whoever writes into it. */
static FILE *open_token(const char *path, char *why, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = fd < 0 ? errno : 0;
	struct stat st;
	FILE *f = NULL;

	if (rc == 0 && fstat(fd, &st))
		rc = errno;
	if (rc == 0 && !S_ISREG(st.st_mode))
		rc = EINVAL;
	if (rc == 0 && !(f = fdopen(fd, "r")))
		rc = errno;
	if (f)
		return f;
	snprintf(why, bytes, "token_file %.200s: %s", path, rc == EINVAL ? "must be a regular file" : strerror(rc));
	if (fd >= 0)
		close(fd);
	errno = rc;
	return NULL;
}

/* The first line of the file, which must be one. */
int client_read_token(const char *path, char token[TN_SERVE_TOKEN_BYTES], char *why, size_t bytes)
{
	FILE *f = open_token(path, why, bytes);
	bool whole;

	if (!f)
		return -errno;
	memset(token, 0, TN_SERVE_TOKEN_BYTES);
	whole = fgets(token, TN_SERVE_TOKEN_BYTES, f) && (strchr(token, '\n') || fgetc(f) == EOF);
	fclose(f);
	token[strcspn(token, "\n")] = '\0';
	if (whole && token[0])
		return 0;
	snprintf(why, bytes, "token_file %.200s: its first line must have 1 to %u bytes", path, TN_SERVE_TOKEN_BYTES - 1);
	return -EINVAL;
}

static int make_rule(const struct client *c, uint32_t i, struct client_rules *r, char *why, size_t bytes)
{
	struct tn_serve_rule *rule = &r->rule[i];

	tn_serve_rule_init(rule);
	tn_quota_init(&r->quota[i]);
	r->quota[i].bytes[TN_TIER_HOST] = c->host_quota;
	r->quota[i].bytes[TN_TIER_DISK] = c->disk_quota;
	rule->uid = c->uid == CLIENT_ANY ? TN_ANY_UID : (uint32_t)c->uid;
	rule->tenants = c->tenants.item;
	rule->ntenants = (uint32_t)c->tenants.n;
	rule->read_only = c->read_only;
	rule->max_priority = (int32_t)c->max_priority;
	rule->quota = &r->quota[i];
	rule->max_memory_bytes = c->max_memory;
	rule->token = c->token_file ? r->token[i] : NULL;
	return c->token_file ? client_read_token(c->token_file, r->token[i], why, bytes) : 0;
}

int clients_rules(const struct clients *c, struct client_rules **out, const struct tn_serve_opts **opts, char *why, size_t bytes)
{
	struct client_rules *r = calloc(1, sizeof(*r));
	int rc = 0;

	if (!r) {
		snprintf(why, bytes, "clients: no memory");
		return -ENOMEM;
	}
	tn_serve_opts_init(&r->opts);
	r->opts.rules = r->rule;
	r->opts.nrules = c->n;
	for (uint32_t i = 0; i < c->n && rc == 0; i++)
		rc = make_rule(&c->item[i], i, r, why, bytes);
	if (rc) {
		free(r);
		return rc;
	}
	*out = r;
	*opts = &r->opts;
	return 0;
}

void clients_rules_free(struct client_rules *r)
{
	free(r);
}
