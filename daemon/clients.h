/* SPDX-License-Identifier: Apache-2.0 */
/* Who may attach to the cache of tenutod, and what they may do: the setting `clients`, a list of rules (struct tn_serve_rule). */
#ifndef TENUTOD_CLIENTS_H
#define TENUTOD_CLIENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tenuto/session.h>

#include "../cli/cli.h"

#define CLIENTS_MAX 64

/**
 * struct client - one rule
 * @uid:        CLIENT_ANY: of any user who has the token
 * @token_file: path of a file whose first line is the token; NULL: none is asked for
 * @tenants:    none: all
 * @host_quota, @disk_quota: UINT64_MAX: no limit
 * @max_memory: bytes that it may have registered; 0: as many as the machine has
 */
struct client {
	uint64_t uid;
	const char *token_file;
	struct cli_strings tenants;
	bool read_only;
	uint64_t max_priority, host_quota, disk_quota, max_memory;
};

#define CLIENT_ANY UINT64_MAX

struct clients {
	struct client item[CLIENTS_MAX];
	uint32_t n;
};

/* A rule that allows everything to whoever has its token. */
void client_init(struct client *c);
/* Whether it is one: 0, or -EINVAL and in why what is wrong and what to write. */
int client_check(const struct client *c, char *why, size_t bytes);
bool clients_same(const struct clients *a, const struct clients *b);

/* The first line of a token file. 0, or -errno and why. */
int client_read_token(const char *path, char token[TN_SERVE_TOKEN_BYTES], char *why, size_t bytes);

/* As options of tn_cache_serve, with the tokens that the files have now. 0, or -errno and why; clients_rules_free after 0. */
struct client_rules;
int clients_rules(const struct clients *c, struct client_rules **out, const struct tn_serve_opts **opts, char *why, size_t bytes);
void clients_rules_free(struct client_rules *r);

#endif
