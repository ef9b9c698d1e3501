/* SPDX-License-Identifier: Apache-2.0 */
/* `tenuto volume`: the catalogue of volumes of a directory (tenuto/blob.h). The blobs are a program's matter. */
#include "cli.h"

#include <stdlib.h>

#include <tenuto/blob.h>

struct volume_args {
	uint64_t bytes;
	bool json;
};

static const struct cli_opt register_options[] = {
	{"bytes", "SIZE", "1MiB", "most bytes of a blob; each takes as much of the cache", CLI_SIZE, offsetof(struct volume_args, bytes), 1, TN_BLOB_BYTES_MAX},
	{0},
};

static const struct cli_opt list_options[] = {
	{"json", NULL, NULL, "print the result as JSON", CLI_FLAG, offsetof(struct volume_args, json), 0, 0},
	{0},
};

static const struct cli_opt no_options[] = {{0}};

static const struct cli_verb register_verb = {
	.name = "volume register",
	.operands = "DIR NAME",
	.about = "Registers a volume in the catalogue of a directory, such as that of a cache. Programs then put and get its blobs by key (tn_blob_put, tn_blob_get).",
	.opts = register_options,
	.min_operands = 2,
	.max_operands = 2,
};

static const struct cli_verb list_verb = {
	.name = "volume list",
	.operands = "DIR",
	.about = "Lists the volumes of a directory's catalogue.",
	.opts = list_options,
	.min_operands = 1,
	.max_operands = 1,
};

static const struct cli_verb remove_verb = {
	.name = "volume remove",
	.operands = "DIR NAME",
	.about = "Takes a volume off the catalogue. Its blobs are not found any more, also not by a volume that is registered under its name later; the cache evicts them "
		 "as others come.",
	.opts = no_options,
	.min_operands = 2,
	.max_operands = 2,
};

static int run_register(int argc, char **argv)
{
	struct volume_args a = {.bytes = 1 << 20};
	int n, rc = cli_parse(&register_verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	rc = tn_volume_register(argv[1], argv[2], a.bytes);
	return rc ? cli_fail(rc, NULL) : CLI_OK;
}

static int print_volumes(const struct tn_volume_info *v, long n, bool json)
{
	static const bool left[] = {true, false};
	struct cli_table t;
	char text[32];

	if (json) {
		json_t *list = json_array();

		for (long i = 0; i < n; i++)
			json_array_append_new(list, json_pack("{s:s,s:I}", "name", v[i].name, "blob_bytes", (json_int_t)v[i].blob_bytes));
		return cli_json(list);
	}
	cli_table_init(&t, 2, left);
	cli_table_cell(&t, "volume");
	cli_table_cell(&t, "blobs up to");
	for (long i = 0; i < n; i++) {
		cli_table_cell(&t, "%s", v[i].name);
		cli_table_cell(&t, "%s", cli_bytes(text, (double)v[i].blob_bytes));
	}
	cli_table_print(&t, stdout, true);
	return cli_finish(CLI_OK);
}

static int run_list(int argc, char **argv)
{
	struct volume_args a = {0};
	struct tn_volume_info *v;
	int count, rc = cli_parse(&list_verb, argc, argv, &a, &count);
	long n;

	if (rc != CLI_GO)
		return rc;
	v = calloc(TN_VOLUMES_MAX, sizeof(*v));
	if (!v)
		return cli_error(CLI_ENVIRONMENT, "no memory");
	n = tn_volume_list(argv[1], v, TN_VOLUMES_MAX);
	rc = n < 0 ? cli_fail((int)n, NULL) : print_volumes(v, n, a.json);
	free(v);
	return rc;
}

static int run_remove(int argc, char **argv)
{
	struct volume_args a = {0};
	int n, rc = cli_parse(&remove_verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	rc = tn_volume_remove(argv[1], argv[2]);
	return rc ? cli_fail(rc, NULL) : CLI_OK;
}

static const struct cli_command commands[] = {
	{"register", run_register, "a new volume in a directory's catalogue"},
	{"list", run_list, "the volumes of a directory"},
	{"remove", run_remove, "take a volume off the catalogue"},
	{NULL, NULL, NULL},
};

int cmd_volume(int argc, char **argv)
{
	return cli_dispatch("tenuto volume", "Volumes of blobs that lie in the tiers of a cache.", commands, argc, argv);
}
