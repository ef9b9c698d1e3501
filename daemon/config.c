/* SPDX-License-Identifier: Apache-2.0 */
/* The table of settings: their defaults, values from text, --print-config, and the cache's options. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "address.h"

#define COMMENT_COLUMNS 100

static const char *const policies[] = {"default", "lru", "fifo", "s3fifo", NULL};
static const char *const schedulers[] = {"slack", "none", NULL};
static const char *const offloads[] = {"after_reuse", "on_evict", "always", NULL};
static const char *const engines[] = {"auto", "io_uring", "posix", NULL};
static const char *const levels[] = {"error", "warning", "info", "debug", NULL}; /* by enum tn_log_level */

#define AT(member) offsetof(struct config, member)

const struct config_setting config_settings[] = {
	{"dirs", CONFIG_DIRS, AT(dirs), 0, 0, NULL, false,
	 "Directories, one per device, each with its absolute path. All have to be there. On a mounted disk name one inside the mount, not "
	 "the mount point. nvme:0000:03:00.0 in the place of one is a raw NVMe drive (`tenuto doctor` lists them). Without directories the "
	 "cache is in host memory alone."},
	{"instance", CONFIG_TEXT, AT(instance), 0, 0, NULL, false, "Part of the directories that is this cache's: DIR/INSTANCE."},
	{"host_bytes", CONFIG_SIZE, AT(host_bytes), 0, 1ull << 46, NULL, false, "Host memory for blocks, as 64GiB; 0: none."},
	{"disk_bytes", CONFIG_SIZE, AT(disk_bytes), 0, 1ull << 56, NULL, false,
	 "Capacity on disk over all directories, as 4TiB; 0: what the stores have, or for new ones a tenth of the free space, of a raw drive "
	 "15/16."},
	{"read_only", CONFIG_SWITCH, AT(read_only), 0, 0, NULL, false, "Never write to the directories."},
	{"write_bytes_per_day", CONFIG_SIZE, AT(write_bytes_per_day), 0, UINT64_MAX, NULL, false,
	 "Budget of writes to the disks, which wear: bytes per day over all of them; 0: no limit."},
	{"write_backlog_bytes", CONFIG_SIZE, AT(write_backlog_bytes), 0, UINT64_MAX, NULL, false,
	 "Most bytes of saves that wait for the disk before further saves are refused; 0: what the disks write in two seconds."},
	{"offload_lag_ms", CONFIG_TIME, AT(offload_lag_ms), 0, UINT32_MAX, NULL, false,
	 "How long a block that is to go to disk may lie in host memory before it is written, in ms; never: no limit."},
	{"durability_ms", CONFIG_TIME, AT(durability_ms), 0, UINT32_MAX, NULL, false,
	 "What was written survives a power cut after about so many ms. 0: a save ends when it is durable; never: only a flush makes "
	 "it durable."},
	{"policy", CONFIG_CHOICE, AT(policy), 0, 0, policies, false, "What leaves a full tier first: default, lru, fifo or s3fifo."},
	{"scheduler", CONFIG_CHOICE, AT(scheduler), 0, 0, schedulers, false,
	 "slack: reads first, writes into the time that loads leave; none: as they come, for benchmarks."},
	{"slack", CONFIG_PATH, AT(slack), 0, 0, NULL, false,
	 "Directory of slack tables, as /var/lib/tenuto/slack: how long engines compute on each layer. A table is written each minute and read when "
	 "its space is opened again, also by the next tenutod. The directory is made if its parent is there. off: none are kept."},
	{"plugins", CONFIG_PATH, AT(plugins), 0, 0, NULL, false,
	 "Directories of plugins, as /opt/tenuto/plugins, with : between them: they, their files and what is above must belong to root or to this user, and nobody else may "
	 "write them. TENUTO_PLUGIN_PATH does not count. off: only plugins that were installed with Tenuto."},
	{"max_blocks", CONFIG_COUNT, AT(max_blocks), 0, 1ull << 31, NULL, false, "Most blocks known at once; 0: from the capacities."},
	{"max_ops", CONFIG_COUNT, AT(max_ops), 1, 4096, NULL, false, "Most loads, saves and prefetches at once."},
	{"max_op_blocks", CONFIG_COUNT, AT(max_op_blocks), 1, 1ull << 20, NULL, false, "Most blocks of one load or save."},
	{"io_engine", CONFIG_CHOICE, AT(io_engine), 0, 0, engines, false,
	 "io_uring, posix (threads), or auto: io_uring where the kernel allows it."},
	{"io_depth", CONFIG_COUNT, AT(io_depth), 1, 2048, NULL, false, "Most requests in flight."},
	{"executors", CONFIG_COUNT, AT(executors), 0, 16, NULL, false,
	 "Threads that read, write and verify; 0: one thread for all requests and workers for the checksums."},
	{"workers", CONFIG_COUNT, AT(workers), 0, 64, NULL, false,
	 "Threads for checksums and copies, without executors; 0: one per two CPUs, at most 4."},
	{"header_cache_bytes", CONFIG_SIZE, AT(header_cache_bytes), 4096, 1ull << 40, NULL, false, "Memory for the headers of blocks."},
	{"lock_timeout_ms", CONFIG_TIME, AT(lock_timeout_ms), 0, 86400000, NULL, false,
	 "How long to wait at the start for another owner of the directories to go away, in ms."},
	{"cluster_secret_file", CONFIG_PATH, AT(cluster_secret_file), 0, 0, NULL, false,
	 "File of mode 0600 with 16 to 4096 secret bytes, as /etc/tenuto/cluster.secret: the same on all nodes that are to know blocks by the same "
	 "keys. off: this store's own secret, which no other store has."},
	{"remote", CONFIG_SPECS, AT(remote), 0, 0, NULL, false,
	 "Object store behind all tiers, as s3,bucket=kv-cache,prefix=NAME or redis,host=HOST, or another node's cache, as peer,host=HOST,port=PORT,secret_file=FILE: nodes with the same cluster_secret_file find each other's blocks there. "
	 "Or a list of up to 8, asked in their order. Credentials are the environment's. off: none."},
	{"offload", CONFIG_CHOICE, AT(offload), 0, 0, offloads, false,
	 "When a block in host memory is written to the remote stores. after_reuse: once a load took it; on_evict: before it leaves memory; always: when "
	 "it was saved."},
	{"events", CONFIG_TEXT, AT(events), 0, 0, NULL, false,
	 "Where block events are published for routers, as zmq,endpoint=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558 in vLLM's form "
	 "(docs/events.md). Whoever can connect reads which blocks are here. off: nowhere."},
	{"serve", CONFIG_SERVE, AT(serve), 0, 0, NULL, false,
	 "Blocks for other nodes' caches, which have this one as a remote peer: tcp is the address and port to listen at, as 10.0.0.2:9471, in a network "
	 "that you trust, because bytes are not encrypted; secret_file is a file of mode 0600 with 16 to 4096 secret bytes, the same on all these "
	 "nodes. tcp off: none are served."},
	{"hints_token_file", CONFIG_PATH, AT(hints_token_file), 0, 0, NULL, false,
	 "File whose first line a router sends with POST /v1/hints at the address of the metrics (docs/events.md), as /etc/tenuto/hints.token. off: no "
	 "hints by HTTP."},
	{"socket", CONFIG_SOCKET, AT(socket), 0, 0, NULL, false,
	 "Unix socket at which processes of the same user attach to the cache (tn_cache_attach), as /run/tenuto/tenuto.sock: a path of at "
	 "most 107 bytes in a directory that is there. auto: tenuto.sock in $RUNTIME_DIRECTORY (systemd's), $XDG_RUNTIME_DIR or /run/tenuto, "
	 "the first that can be written, where `tenuto status` looks, too. off: none. A socket that systemd gives comes first."},
	{"clients", CONFIG_CLIENTS, AT(clients), 0, 0, NULL, true,
	 "Who may attach, and what they may: a list of rules, the first that fits counts. Without any, processes of tenutod's own user may do "
	 "everything. A rule, as - {uid: 1000, tenants: [team-a], disk_quota: 100GiB}, has a uid or a token_file (for containers that share a uid; "
	 "its first line is what they give as token), and may have tenants, read_only, max_priority, host_quota and disk_quota (of each space), and max_memory: "
	 "of its pages that it may let this process map, without which it is as much as the machine has. "
	 "Processes that are attached keep the rule that they have."},
	{"listen", CONFIG_LISTEN, AT(listen), 0, 0, NULL, false,
	 "Address and port of /metrics, /healthz and /readyz, as 127.0.0.1:9470 or [::1]:9470; off: none. They ask for no password: give an "
	 "address that others reach only in a network that you trust."},
	{"log_level", CONFIG_CHOICE, AT(log_level), 0, 0, levels, true, "error, warning, info or debug."},
	{0},
};

const struct config_setting client_settings[] = {
	{"uid", CONFIG_COUNT, offsetof(struct client, uid), 0, UINT32_MAX - 1, NULL, true, NULL},
	{"token_file", CONFIG_TEXT, offsetof(struct client, token_file), 0, 0, NULL, true, NULL},
	{"tenants", CONFIG_DIRS, offsetof(struct client, tenants), 0, 0, NULL, true, NULL},
	{"read_only", CONFIG_SWITCH, offsetof(struct client, read_only), 0, 0, NULL, true, NULL},
	{"max_priority", CONFIG_COUNT, offsetof(struct client, max_priority), 0, 127, NULL, true, NULL},
	{"host_quota", CONFIG_SIZE, offsetof(struct client, host_quota), 0, UINT64_MAX, NULL, true, NULL},
	{"disk_quota", CONFIG_SIZE, offsetof(struct client, disk_quota), 0, UINT64_MAX, NULL, true, NULL},
	{"max_memory", CONFIG_SIZE, offsetof(struct client, max_memory), 1, 1ull << 46, NULL, true, NULL},
	{0},
};

const struct config_setting serve_settings[] = {
	{"tcp", CONFIG_LISTEN, offsetof(struct config_serve, tcp), 0, 0, NULL, false, NULL},
	{"secret_file", CONFIG_PATH, offsetof(struct config_serve, secret_file), 0, 0, NULL, false, NULL},
	{0},
};

_Static_assert(sizeof(config_settings) / sizeof(config_settings[0]) <= CONFIG_SETTINGS_MAX, "each has its line");

void config_init(struct config *c)
{
	struct tn_cache_opts o;

	tn_cache_opts_init(&o);
	*c = (struct config){
		.instance = o.instance,
		.offload_lag_ms = o.offload_lag_ms,
		.durability_ms = o.durability_ms,
		.policy = o.policy,
		.scheduler = o.scheduler,
		.slack = "off",
		.plugins = "off",
		.cluster_secret_file = "off",
		.remote = "off",
		.offload = o.offload,
		.events = "off",
		.hints_token_file = "off",
		.serve = {"off", "off"},
		.max_ops = o.max_ops,
		.max_op_blocks = o.max_op_blocks,
		.io_engine = o.io_engine,
		.io_depth = o.io_depth,
		.header_cache_bytes = o.header_cache_bytes,
		.lock_timeout_ms = o.lock_timeout_ns / 1000000,
		.socket = "auto",
		.listen = "127.0.0.1:9470",
		.log_level = levels[o.log_level],
	};
}

void config_free(struct config *c)
{
	if (c->has_document)
		yaml_document_delete(&c->document);
	c->has_document = false;
}

/* ---- values from text ------------------------------------------------------------------------------ */

static int set_choice(const char **to, const struct config_setting *s, const char *value, char *why)
{
	size_t n = 0, at = 0;
	const char *near;

	for (; s->choices[n]; n++)
		if (strcmp(s->choices[n], value) == 0) {
			*to = s->choices[n];
			return 0;
		}
	near = cli_nearest(value, s->choices, n);
	at += (size_t)snprintf(why, CONFIG_WHY, "'%.60s': write ", value);
	for (size_t i = 0; i < n; i++)
		at += (size_t)snprintf(why + at, CONFIG_WHY - at, "%s%s", i == 0 ? "" : i + 1 < n ? ", " : " or ", s->choices[i]);
	if (near)
		snprintf(why + at, CONFIG_WHY - at, "; did you mean %s?", near);
	return -EINVAL;
}

static int set_switch(bool *to, const char *value, char *why)
{
	*to = strcmp(value, "true") == 0;
	if (*to || strcmp(value, "false") == 0)
		return 0;
	snprintf(why, CONFIG_WHY, "'%.60s': write true or false", value);
	return -EINVAL;
}

static int set_socket(const char **to, const char *value, char *why)
{
	*to = value;
	if ((value[0] == '/' && strlen(value) <= CONFIG_SOCKET_BYTES) || strcmp(value, "off") == 0 || strcmp(value, "auto") == 0)
		return 0;
	snprintf(why, CONFIG_WHY, "'%.200s': write an absolute path of at most %d bytes, such as /run/tenuto/tenuto.sock, auto or off", value,
		 CONFIG_SOCKET_BYTES);
	return -EINVAL;
}

static int set_path(const char **to, const struct config_setting *s, const char *value, char *why)
{
	*to = value;
	if (value[0] == '/' || strcmp(value, "off") == 0)
		return 0;
	snprintf(why, CONFIG_WHY, "'%.200s': write an absolute path, such as /var/lib/tenuto/%s, or off", value, s->name);
	return -EINVAL;
}

static int set_listen(const char **to, const char *value, char *why)
{
	*to = value;
	if (address_check(value) == 0)
		return 0;
	snprintf(why, CONFIG_WHY, "'%.60s' is no numeric address with a port: write one such as 127.0.0.1:9470 or [::1]:9470, or off", value);
	return -EINVAL;
}

/* A number, with what to write behind what is wrong with it. */
static int set_number(uint64_t *to, const struct config_setting *s, const char *value, char *why)
{
	char what[CLI_WHY];

	if (s->kind == CONFIG_TIME && s->max == UINT32_MAX && strcmp(value, "never") == 0) {
		*to = UINT32_MAX;
		return 0;
	}
	if (s->kind == CONFIG_SIZE) {
		if (cli_size(value, s->min, s->max, to, what) == 0)
			return 0;
		snprintf(why, CONFIG_WHY, "%s; write a size such as 64GiB or 500MB", what);
		return -EINVAL;
	}
	if (cli_count(value, s->min, s->max, to, what) == 0)
		return 0;
	if (s->kind == CONFIG_TIME)
		snprintf(why, CONFIG_WHY, "%s; write a number of ms, such as 1000%s", what, s->max == UINT32_MAX ? ", or never" : "");
	else
		snprintf(why, CONFIG_WHY, "%s; write a number from %" PRIu64 " to %" PRIu64, what, s->min, s->max);
	return -EINVAL;
}

int config_value(void *to, const struct config_setting *s, const char *value, char *why)
{
	if (!*value) {
		snprintf(why, CONFIG_WHY, "has no value: write one, or leave the line out");
		return -EINVAL;
	}
	switch (s->kind) {
	case CONFIG_CHOICE:
		return set_choice(to, s, value, why);
	case CONFIG_SWITCH:
		return set_switch(to, value, why);
	case CONFIG_SOCKET:
		return set_socket(to, value, why);
	case CONFIG_PATH:
		return set_path(to, s, value, why);
	case CONFIG_LISTEN:
		return set_listen(to, value, why);
	case CONFIG_TEXT:
		*(const char **)to = value;
		return 0;
	case CONFIG_SPECS:
		*(char *)to = 0;
		return config_add_spec(to, value, why);
	case CONFIG_SIZE:
	case CONFIG_COUNT:
	case CONFIG_TIME:
		return set_number(to, s, value, why);
	case CONFIG_DIRS:
	case CONFIG_CLIENTS:
	case CONFIG_SERVE:
		break;
	}
	snprintf(why, CONFIG_WHY, "'%.60s': write a %s", value, s->kind == CONFIG_SERVE ? "mapping, such as {tcp: 127.0.0.1:9471, secret_file: /etc/tenuto/peers.secret}" : "list");
	return -EINVAL;
}

int config_set(struct config *c, const struct config_setting *s, const char *value, char *why)
{
	if (s->kind == CONFIG_DIRS && *value)
		return config_add_dir(c, s, value, why);
	return config_value((char *)c + s->offset, s, value, why);
}

int config_add_dir(struct config *c, const struct config_setting *s, const char *value, char *why)
{
	struct cli_strings *dirs = (struct cli_strings *)(void *)((char *)c + s->offset);

	if (value[0] != '/' && !cli_is_drive(value)) {
		snprintf(why, CONFIG_WHY, "'%.200s': write an absolute path, such as /nvme0/tenuto, or a raw drive as nvme:0000:03:00.0", value);
		return -EINVAL;
	}
	if (dirs->n == CLI_STRINGS_MAX) {
		snprintf(why, CONFIG_WHY, "'%.200s' is one directory too many: write at most %d", value, CLI_STRINGS_MAX);
		return -EINVAL;
	}
	dirs->item[dirs->n++] = value;
	return 0;
}

int config_add_spec(char *specs, const char *value, char *why)
{
	size_t n = strlen(specs), bytes = strlen(value);

	if (n + bytes + 2 > CONFIG_SPECS_BYTES) {
		snprintf(why, CONFIG_WHY, "longer than %d bytes: write less", CONFIG_SPECS_BYTES - 2);
		return -EINVAL;
	}
	snprintf(specs + n, CONFIG_SPECS_BYTES - n, "%s%s", n ? ";" : "", value);
	return 0;
}

int config_check(const struct config *c, char *why)
{
	if (strcmp(c->serve.tcp, "off") != 0 && strcmp(c->serve.secret_file, "off") == 0) {
		snprintf(why, CONFIG_WHY, "serve: tcp is %.60s, and there is no secret_file: write one, such as /etc/tenuto/peers.secret", c->serve.tcp);
		return -EINVAL;
	}
	if (c->dirs.n > 0 || c->host_bytes > 0)
		return 0;
	snprintf(why, CONFIG_WHY, "neither dirs nor host_bytes: the cache could hold nothing. Write at least one of them, such as "
		 "host_bytes: 64GiB");
	return -EINVAL;
}

uint32_t config_line(const struct config *c, const char *setting)
{
	const struct config_setting *s = config_settings;

	while (strcmp(s->name, setting) != 0)
		s++;
	return c->line[s - config_settings];
}

/* ---- values to text -------------------------------------------------------------------------------- */

static void print_comment(FILE *out, const char *text)
{
	while (*text) {
		size_t n = strlen(text), line = n;

		if (n > COMMENT_COLUMNS)
			for (line = COMMENT_COLUMNS; text[line] != ' '; line--)
				continue;
		fprintf(out, "# %.*s\n", (int)line, text);
		text += line + (line < n);
	}
}

/* The code point at s, of UTF-8 that is sound, or the byte; how many bytes it has. */
static size_t code_of(const unsigned char *s, uint32_t *code)
{
	size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc0 ? 2 : 1, i = 1;

	*code = s[0];
	for (uint32_t c = s[0] & (0x7fu >> n); n > 1 && (s[i] & 0xc0) == 0x80; i++) {
		c = c << 6 | (s[i] & 0x3f);
		if (i + 1 == n) {
			*code = c;
			return n;
		}
	}
	return 1;
}

/* What YAML takes for the end of a line, or not at all. */
static bool needs_escape(uint32_t code)
{
	return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 || code == 0xfeff || code == 0xfffe ||
	       code == 0xffff;
}

static void print_text(FILE *out, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;

	putc('"', out);
	while (*s) {
		uint32_t code;
		size_t n = code_of(s, &code);

		if (code == '"' || code == '\\')
			fprintf(out, "\\%c", (int)code);
		else if (needs_escape(code))
			fprintf(out, "\\U%08x", code);
		else
			fwrite(s, 1, n, out);
		s += n;
	}
	fputs("\"\n", out);
}

static void print_size(FILE *out, uint64_t bytes)
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	size_t i = 0;

	for (; i < 4 && bytes > 0 && bytes % 1024 == 0; i++)
		bytes /= 1024;
	fprintf(out, "%" PRIu64 "%s\n", bytes, bytes ? unit[i] : "");
}

/* Of a client: what is not as client_init has it. */
static void print_client(FILE *out, const struct client *c)
{
	struct client defaults;

	client_init(&defaults);
	fputs("  - read_only: ", out);
	fputs(c->read_only ? "true\n" : "false\n", out);
	if (c->uid != defaults.uid)
		fprintf(out, "    uid: %" PRIu64 "\n", c->uid);
	if (c->token_file) {
		fputs("    token_file: ", out);
		print_text(out, c->token_file);
	}
	if (c->tenants.n)
		fputs("    tenants:\n", out);
	for (size_t i = 0; i < c->tenants.n; i++) {
		fputs("      - ", out);
		print_text(out, c->tenants.item[i]);
	}
	fprintf(out, "    max_priority: %" PRIu64 "\n", c->max_priority);
	if (c->host_quota != defaults.host_quota) {
		fputs("    host_quota: ", out);
		print_size(out, c->host_quota);
	}
	if (c->disk_quota != defaults.disk_quota) {
		fputs("    disk_quota: ", out);
		print_size(out, c->disk_quota);
	}
	if (c->max_memory != defaults.max_memory) {
		fputs("    max_memory: ", out);
		print_size(out, c->max_memory);
	}
}

static void print_clients(FILE *out, const struct clients *clients)
{
	fputs(clients->n ? "\n" : " []\n", out);
	for (uint32_t i = 0; i < clients->n; i++)
		print_client(out, &clients->item[i]);
}

/* One text, or a list. */
static void print_specs(FILE *out, const char *specs)
{
	char one[CONFIG_SPECS_BYTES];
	size_t n;

	if (!strchr(specs, ';')) {
		putc(' ', out);
		print_text(out, specs);
		return;
	}
	putc('\n', out);
	for (; *specs; specs += n + (specs[n] != 0)) {
		n = strcspn(specs, ";");
		snprintf(one, sizeof(one), "%.*s", (int)n, specs);
		fputs("  - ", out);
		print_text(out, one);
	}
}

static void print_serve(FILE *out, const struct config_serve *serve)
{
	fputs("\n  tcp: ", out);
	print_text(out, serve->tcp);
	fputs("  secret_file: ", out);
	print_text(out, serve->secret_file);
}

static void print_value(FILE *out, const struct config_setting *s, const void *value)
{
	const struct cli_strings *dirs = value;

	switch (s->kind) {
	case CONFIG_DIRS:
		fputs(dirs->n ? "\n" : " []\n", out);
		for (size_t i = 0; i < dirs->n; i++) {
			fputs("  - ", out);
			print_text(out, dirs->item[i]);
		}
		return;
	case CONFIG_CLIENTS:
		print_clients(out, value);
		return;
	case CONFIG_SPECS:
		print_specs(out, value);
		return;
	case CONFIG_SERVE:
		print_serve(out, value);
		return;
	case CONFIG_TEXT:
	case CONFIG_PATH:
	case CONFIG_SOCKET:
	case CONFIG_LISTEN:
		print_text(out, *(const char *const *)value);
		return;
	case CONFIG_CHOICE:
		fprintf(out, "%s\n", *(const char *const *)value);
		return;
	case CONFIG_SWITCH:
		fprintf(out, "%s\n", *(const bool *)value ? "true" : "false");
		return;
	case CONFIG_SIZE:
		print_size(out, *(const uint64_t *)value);
		return;
	case CONFIG_TIME:
	case CONFIG_COUNT:
		if (s->kind == CONFIG_TIME && *(const uint64_t *)value == UINT32_MAX)
			fputs("never\n", out);
		else
			fprintf(out, "%" PRIu64 "\n", *(const uint64_t *)value);
	}
}

void config_print(const struct config *c, FILE *out)
{
	fprintf(out, "# Configuration of tenutod %s. A setting that is left out has its default.\n",
		tn_version());
	for (const struct config_setting *s = config_settings; s->name; s++) {
		fputc('\n', out);
		print_comment(out, s->help);
		fprintf(out, s->kind == CONFIG_DIRS || s->kind == CONFIG_CLIENTS || s->kind == CONFIG_SPECS || s->kind == CONFIG_SERVE ? "%s:" : "%s: ", s->name);
		print_value(out, s, (const char *)c + s->offset);
	}
}

/* ---- use ------------------------------------------------------------------------------------------- */

static bool same_dirs(const struct cli_strings *a, const struct cli_strings *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++)
		if (strcmp(a->item[i], b->item[i]) != 0)
			return false;
	return true;
}

bool config_same(const struct config_setting *s, const struct config *a, const struct config *b)
{
	const void *x = (const char *)a + s->offset, *y = (const char *)b + s->offset;

	switch (s->kind) {
	case CONFIG_DIRS:
		return same_dirs(x, y);
	case CONFIG_CLIENTS:
		return clients_same(x, y);
	case CONFIG_SPECS:
		return strcmp(x, y) == 0;
	case CONFIG_SERVE:
		return strcmp(a->serve.tcp, b->serve.tcp) == 0 && strcmp(a->serve.secret_file, b->serve.secret_file) == 0;
	case CONFIG_TEXT:
	case CONFIG_PATH:
	case CONFIG_CHOICE:
	case CONFIG_SOCKET:
	case CONFIG_LISTEN:
		return strcmp(*(const char *const *)x, *(const char *const *)y) == 0;
	case CONFIG_SWITCH:
		return *(const bool *)x == *(const bool *)y;
	case CONFIG_SIZE:
	case CONFIG_COUNT:
	case CONFIG_TIME:
		break;
	}
	return *(const uint64_t *)x == *(const uint64_t *)y;
}

enum tn_log_level config_log_level(const struct config *c)
{
	uint32_t level = TN_LOG_ERROR;

	while (strcmp(levels[level], c->log_level) != 0)
		level++;
	return (enum tn_log_level)level;
}

void config_cache_opts(const struct config *c, struct tn_cache_opts *o)
{
	tn_cache_opts_init(o);
	o->dirs = c->dirs.item;
	o->ndirs = c->dirs.n;
	o->instance = c->instance;
	o->host_bytes = c->host_bytes;
	o->disk_bytes = c->disk_bytes;
	o->read_only = c->read_only;
	o->write_bytes_per_day = c->write_bytes_per_day;
	o->write_backlog_bytes = c->write_backlog_bytes;
	o->offload_lag_ms = (uint32_t)c->offload_lag_ms;
	o->durability_ms = (uint32_t)c->durability_ms;
	o->policy = c->policy;
	o->scheduler = c->scheduler;
	o->max_blocks = c->max_blocks;
	o->max_ops = (uint32_t)c->max_ops;
	o->max_op_blocks = (uint32_t)c->max_op_blocks;
	o->io_engine = c->io_engine;
	o->io_depth = (uint32_t)c->io_depth;
	o->executors = (uint32_t)c->executors;
	o->workers = (uint32_t)c->workers;
	o->header_cache_bytes = c->header_cache_bytes;
	o->lock_timeout_ns = c->lock_timeout_ms * 1000000;
	o->cluster_secret_file = strcmp(c->cluster_secret_file, "off") == 0 ? NULL : c->cluster_secret_file;
	o->offload = c->offload;
	o->remote = strcmp(c->remote, "off") == 0 ? NULL : c->remote;
}
