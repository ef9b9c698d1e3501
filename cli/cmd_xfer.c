/* SPDX-License-Identifier: Apache-2.0 */
/* `tenuto xfer`: look at transfer agents, and move a file's bytes into the memory of one, or out of it, by hand. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tenuto/plugin.h>
#include <tenuto/xfer.h>

#define PATIENCE_NS 10000000000ull
#define SECRET_MAX 256
#define SHOWN_MAX 64u
#define PLUGINS_MAX 32
#define BUILTIN_MAX 16
#define MISSING_MAX (PLUGINS_MAX + BUILTIN_MAX + 2) /* and own_plugins */
#define OBJECT_SCHEME "s3://"

static const char *const segment_names[TN_XFER_SEGMENTS] = {"DRAM", "VRAM", "BLOCK", "OBJECT", "FILE"};

/* ---- an agent of the program ------------------------------------------------------------------------------------------- */

struct xfer_args {
	const char *secret_file, *listen, *directory;
	uint64_t bytes, offset;
	bool json;
};

#define SECRET_OPTION                                                                                                           \
	{"secret-file", "FILE", NULL, "the shared secret of the agents, 16 to 256 bytes; a line's end behind it does not count", \
	 CLI_STRING, offsetof(struct xfer_args, secret_file), 0, 0}

#define DIRECTORY_OPTION                                                                                                        \
	{"directory", "SPEC", NULL, "where agents publish their metadata, as \"etcd,endpoints=http://127.0.0.1:2379\"", CLI_STRING, \
	 offsetof(struct xfer_args, directory), 0, 0}

static int read_secret(const char *path, char *out, size_t *bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, out, SECRET_MAX + 1);

	if (n < 0) {
		int error = errno;

		if (fd >= 0)
			close(fd);
		return cli_error(CLI_USAGE, "--secret-file %s: %s", path, strerror(error));
	}
	close(fd);
	*bytes = (size_t)n;
	if (*bytes && out[*bytes - 1] == '\n')
		(*bytes)--;
	return CLI_OK;
}

static int agent_open(const struct xfer_args *a, const char *kind, struct tn_xfer_agent **out)
{
	struct tn_xfer_agent_opts opts;
	char name[64], secret[SECRET_MAX + 1];
	int rc = CLI_OK;

	snprintf(name, sizeof(name), "tenuto-%s-%d", kind, (int)getpid());
	tn_xfer_agent_opts_init(&opts);
	opts.name = name;
	opts.listen = a->listen ? a->listen : "none";
	if (a->secret_file) {
		rc = read_secret(a->secret_file, secret, &opts.secret_bytes);
		opts.secret = secret;
	}
	if (rc)
		return rc;
	rc = tn_xfer_agent_create(&opts, out);
	if (rc)
		return cli_fail(rc, NULL);
	rc = a->directory ? tn_xfer_directory_set(*out, a->directory) : 0;
	if (rc == 0)
		return CLI_OK;
	rc = cli_fail(rc, NULL);
	tn_xfer_agent_destroy(*out);
	return rc;
}

/* ---- backends ---------------------------------------------------------------------------------------------------------- */

static const struct cli_opt backend_options[] = {
	{"json", NULL, NULL, "print the result as JSON", CLI_FLAG, offsetof(struct xfer_args, json), 0, 0},
	{0},
};

static const struct cli_verb backends_verb = {
	.name = "xfer backends",
	.about = "Lists the backends that the library and its plugins have: the kinds of memory that each takes, how long a transfer is expected to take "
		 "here, and why one cannot be used.",
	.opts = backend_options,
};

static void kinds_of(uint32_t segments, char *out, size_t bytes)
{
	size_t at = 0;

	out[0] = 0;
	for (uint32_t i = 0; i < TN_XFER_SEGMENTS && at < bytes; i++)
		if (segments & 1u << i)
			at += (size_t)snprintf(out + at, bytes - at, "%s%s", at ? " " : "", segment_names[i]);
}

static void backend_row(struct cli_table *t, const struct tn_xfer_backend_info *info)
{
	char kinds[64];

	kinds_of(info->segments, kinds, sizeof(kinds));
	cli_table_cell(t, "%s", info->name);
	cli_table_cell(t, "%s", kinds);
	cli_table_cell(t, "%.1f", (double)info->latency_ns / 1e3);
	cli_table_cell(t, "%.2f", (double)info->bytes_per_s / 1e9);
}

static void backend_json(json_t *list, const struct tn_xfer_backend_info *info)
{
	json_t *o = json_object();
	char kinds[64];

	kinds_of(info->segments, kinds, sizeof(kinds));
	json_object_set_new(o, "name", json_string(info->name));
	json_object_set_new(o, "segments", json_string(kinds));
	json_object_set_new(o, "latency_ns", json_integer((json_int_t)info->latency_ns));
	json_object_set_new(o, "bytes_per_s", json_integer((json_int_t)info->bytes_per_s));
	json_array_append_new(list, o);
}

/* One that cannot be used here. */
struct missing {
	char name[TN_PLUGIN_NAME_MAX];
	char why[512];
};

static int print_backends(struct tn_xfer_agent *agent, const struct missing *missing, uint32_t nmissing, bool json)
{
	static const bool left[] = {true, true, false, false};
	static const char *const heads[] = {"backend", "takes", "latency/us", "GB/s"};
	struct tn_xfer_backend_info info = {.size = sizeof(info)};
	struct cli_table t;

	if (json) {
		json_t *list = json_array();

		for (uint32_t i = 0; tn_xfer_backend_get(agent, i, &info) == 0; i++)
			backend_json(list, &info);
		for (uint32_t i = 0; i < nmissing; i++)
			json_array_append_new(list, json_pack("{s:s,s:s}", "name", missing[i].name, "error", missing[i].why));
		return cli_json(list);
	}
	cli_table_init(&t, 4, left);
	for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
		cli_table_cell(&t, "%s", heads[i]);
	for (uint32_t i = 0; tn_xfer_backend_get(agent, i, &info) == 0; i++)
		backend_row(&t, &info);
	cli_table_print(&t, stdout, true);
	for (uint32_t i = 0; i < nmissing; i++)
		printf("\n%s cannot be used: %s\n", missing[i].name, missing[i].why);
	return cli_finish(CLI_OK);
}

/* A backend that the agent may have already, or that is known to be missing; else it may be one more that is missing. */
static void add_backend(struct tn_xfer_agent *agent, const char *name, struct missing *missing, uint32_t *nmissing)
{
	int rc;

	for (uint32_t i = 0; i < *nmissing; i++)
		if (!strcmp(missing[i].name, name))
			return;
	rc = tn_xfer_backend_add(agent, name);
	if (rc == 0 || rc == -EEXIST)
		return;
	snprintf(missing[*nmissing].name, sizeof(missing->name), "%s", name);
	snprintf(missing[*nmissing].why, sizeof(missing->why), "%s", tn_error_last()->text);
	++*nmissing;
}

/* Plugins that belong to Tenuto, and are missed where they are not. */
static const char *const own_plugins[] = {"s3", "ucx"};

/* With all backends, as far as the agent takes them; how many are missing. */
static uint32_t add_all(struct tn_xfer_agent *agent, struct missing missing[MISSING_MAX])
{
	struct tn_plugin_info *info = calloc(PLUGINS_MAX, sizeof(*info));
	int n = info ? tn_plugin_list(info, PLUGINS_MAX) : 0;
	uint32_t nmissing = 0;

	for (uint32_t i = 0; i < BUILTIN_MAX && tn_xfer_backend_name(i); i++)
		add_backend(agent, tn_xfer_backend_name(i), missing, &nmissing);
	for (uint32_t i = 0; i < sizeof(own_plugins) / sizeof(own_plugins[0]); i++)
		add_backend(agent, own_plugins[i], missing, &nmissing);
	for (int i = 0; i < n && i < PLUGINS_MAX; i++)
		if (info[i].kind == TN_PLUGIN_XFER && !info[i].status)
			add_backend(agent, info[i].name, missing, &nmissing);
	free(info);
	return nmissing;
}

static int run_backends(int argc, char **argv)
{
	struct missing missing[MISSING_MAX];
	struct xfer_args a = {0};
	struct tn_xfer_agent *agent;
	uint32_t nmissing;
	int n, rc = cli_parse(&backends_verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	rc = agent_open(&a, "backends", &agent);
	if (rc)
		return rc;
	nmissing = add_all(agent, missing);
	rc = print_backends(agent, missing, nmissing, a.json);
	tn_xfer_agent_destroy(agent);
	return rc;
}

/* ---- info -------------------------------------------------------------------------------------------------------------- */

static const struct cli_opt info_options[] = {
	SECRET_OPTION,
	DIRECTORY_OPTION,
	{0},
};

static const struct cli_verb info_verb = {
	.name = "xfer info",
	.operands = "ADDRESS",
	.about = "Prints what the agent that listens at ADDRESS (unix:PATH, tcp:HOST:PORT) says of itself: name, generation, sections, statistics. With "
		 "--directory, ADDRESS is the name of an agent that has published its metadata: no statistics then.",
	.opts = info_options,
	.min_operands = 1,
	.max_operands = 1,
};

static int fetch(struct tn_xfer_agent *agent, const struct xfer_args *a, const char *address, char peer[TN_XFER_NAME_BYTES])
{
	uint64_t deadline_ns = cli_now_ns() + PATIENCE_NS;
	int rc;

	if (a->directory) {
		snprintf(peer, TN_XFER_NAME_BYTES, "%s", address);
		rc = tn_xfer_lookup(agent, address, NULL, deadline_ns);
	} else {
		rc = tn_xfer_fetch(agent, address, deadline_ns, peer);
	}
	return rc ? cli_fail(rc, NULL) : CLI_OK;
}

static void print_sections(struct tn_xfer_agent *agent, const char *peer)
{
	static const bool left[] = {true, false, true, false};
	struct tn_xfer_peer_section s[SHOWN_MAX];
	int n = tn_xfer_peer_sections(agent, peer, 0, SHOWN_MAX, s);
	struct cli_table t;
	char bytes[32];

	cli_table_init(&t, 4, left);
	cli_table_cell(&t, "kind");
	cli_table_cell(&t, "device");
	cli_table_cell(&t, "address");
	cli_table_cell(&t, "bytes");
	for (int i = 0; i < n; i++) {
		cli_table_cell(&t, "%s", segment_names[s[i].segment % TN_XFER_SEGMENTS]);
		cli_table_cell(&t, "%" PRIu64, s[i].device);
		cli_table_cell(&t, "%#" PRIx64, s[i].address);
		cli_table_cell(&t, "%s", s[i].bytes ? cli_number(bytes, s[i].bytes) : "open");
	}
	cli_table_print(&t, stdout, true);
}

/* Lines "NAME VALUE" of the agent. */
static int print_stats(struct tn_xfer_agent *agent, const char *address)
{
	static const bool left[] = {true, false};
	char text[8192], *line, *next = text;
	int64_t n = tn_xfer_fetch_stats(agent, address, cli_now_ns() + PATIENCE_NS, text, sizeof(text));
	struct cli_table t;
	char number[32];

	if (n < 0)
		return cli_fail((int)n, NULL);
	cli_table_init(&t, 2, left);
	cli_table_cell(&t, "statistic");
	cli_table_cell(&t, "value");
	while ((line = strsep(&next, "\n")) != NULL) {
		char *value = strchr(line, ' ');

		if (!value)
			continue;
		*value++ = 0;
		cli_table_cell(&t, "%s", line);
		cli_table_cell(&t, "%s", cli_number(number, strtoull(value, NULL, 10)));
	}
	cli_table_print(&t, stdout, true);
	return CLI_OK;
}

static int run_info(int argc, char **argv)
{
	struct tn_xfer_peer_info info = {.size = sizeof(info)};
	char peer[TN_XFER_NAME_BYTES], shown[4 * TN_XFER_NAME_BYTES];
	struct xfer_args a = {0};
	struct tn_xfer_agent *agent;
	int n, rc = cli_parse(&info_verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	rc = agent_open(&a, "info", &agent);
	if (rc)
		return rc;
	rc = fetch(agent, &a, argv[1], peer);
	if (rc == CLI_OK) {
		tn_xfer_peer(agent, peer, &info);
		printf("agent %s, generation %" PRIu64 ", revision %" PRIu64 ", %u sections\n", cli_utf8(shown, sizeof(shown), peer), info.generation,
		       info.revision, info.sections);
		print_sections(agent, peer);
		rc = a.directory ? CLI_OK : print_stats(agent, argv[1]);
	}
	tn_xfer_agent_destroy(agent);
	return rc ? rc : cli_finish(CLI_OK);
}

/* ---- listen ------------------------------------------------------------------------------------------------------------ */

static const struct cli_opt listen_options[] = {
	SECRET_OPTION,
	DIRECTORY_OPTION,
	{"bytes", "SIZE", "64MiB", "memory that others may read and write", CLI_SIZE, offsetof(struct xfer_args, bytes), 1, UINT64_C(1) << 40},
	{0},
};

static const struct cli_verb listen_verb = {
	.name = "xfer listen",
	.operands = "ADDRESS",
	.about = "Listens at ADDRESS (unix:PATH, tcp:HOST:PORT) with some memory, which `tenuto xfer put` and `get` write and read, and prints the notifications "
		 "that arrive. With --directory its metadata is published there under the name that is printed. Ends with a signal.",
	.opts = listen_options,
	.min_operands = 1,
	.max_operands = 1,
};

static void print_notifications(struct tn_xfer_agent *agent)
{
	static char bytes[TN_XFER_NOTIFICATION_MAX + 1];
	char sender[TN_XFER_NAME_BYTES], shown[4 * TN_XFER_NAME_BYTES], text[1024];
	int64_t n;

	while ((n = tn_xfer_take(agent, sender, bytes, TN_XFER_NOTIFICATION_MAX)) >= 0) {
		bytes[n] = 0;
		printf("%s: %s\n", cli_utf8(shown, sizeof(shown), sender), cli_utf8(text, sizeof(text), bytes));
		fflush(stdout);
	}
}

static int serve(struct tn_xfer_agent *agent, uint64_t bytes, bool publish)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct tn_xfer_section s = {.address = (uintptr_t)memory, .bytes = bytes};
	int rc;

	if (memory == MAP_FAILED)
		return cli_error(CLI_ENVIRONMENT, "--bytes %" PRIu64 ": %s", bytes, strerror(errno));
	rc = tn_xfer_register(agent, TN_XFER_DRAM, &s, 1);
	if (rc == 0 && publish)
		rc = tn_xfer_publish(agent, NULL, TN_XFER_DRAM, NULL, 0, cli_now_ns() + PATIENCE_NS);
	if (rc)
		return cli_fail(rc, NULL);
	cli_catch_interrupts();
	printf("listening as tenuto-listen-%d, %" PRIu64 " bytes\n", (int)getpid(), bytes);
	fflush(stdout);
	while (!cli_interrupted()) {
		uint32_t seen = __atomic_load_n(tn_xfer_event_word(agent), __ATOMIC_ACQUIRE);

		print_notifications(agent);
		tn_xfer_event_wait(agent, seen, cli_now_ns() + 200000000);
	}
	return cli_finish(CLI_OK);
}

static int run_listen(int argc, char **argv)
{
	struct xfer_args a = {.bytes = 64u << 20};
	struct tn_xfer_agent *agent;
	int n, rc = cli_parse(&listen_verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	if (!a.secret_file && !a.directory)
		return cli_error(CLI_USAGE, "--secret-file is wanted: others prove with it that they may connect");
	a.listen = argv[1];
	rc = agent_open(&a, "listen", &agent);
	if (rc)
		return rc;
	rc = serve(agent, a.bytes, a.directory != NULL);
	tn_xfer_agent_destroy(agent);
	return rc;
}

/* ---- put and get ------------------------------------------------------------------------------------------------------- */

static const struct cli_opt move_options[] = {
	SECRET_OPTION,
	DIRECTORY_OPTION,
	{"offset", "SIZE", "0", "first byte of the agent's first section of memory, or of the object", CLI_SIZE, offsetof(struct xfer_args, offset), 0, UINT64_C(1) << 46},
	{"bytes", "SIZE", "the file's, or the section's", "how many", CLI_SIZE, offsetof(struct xfer_args, bytes), 1, UINT64_C(1) << 46},
	{0},
};

#define OBJECT_ABOUT "The store and its credentials come from AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."

static const struct cli_verb put_verb = {
	.name = "xfer put",
	.operands = "ADDRESS FILE",
	.about = "Writes a file's bytes into the memory of the agent that listens at ADDRESS, or makes an object of them if ADDRESS is s3://BUCKET/KEY. "
		 OBJECT_ABOUT,
	.opts = move_options,
	.min_operands = 2,
	.max_operands = 2,
};

static const struct cli_verb get_verb = {
	.name = "xfer get",
	.operands = "ADDRESS FILE",
	.about = "Reads memory of the agent that listens at ADDRESS into a file, or an object if ADDRESS is s3://BUCKET/KEY. " OBJECT_ABOUT,
	.opts = move_options,
	.min_operands = 2,
	.max_operands = 2,
};

/* One request over bytes of this process, and of a peer's memory or of an object (peer NULL). */
static int move(struct tn_xfer_agent *agent, enum tn_xfer_op op, void *local, const char *peer, uint64_t remote, uint64_t device, uint64_t bytes)
{
	enum tn_xfer_segment segment = peer ? TN_XFER_DRAM : TN_XFER_OBJECT;
	struct tn_xfer_section s = {.address = (uintptr_t)local, .bytes = bytes};
	struct tn_xfer_run here = {.address = s.address, .bytes = bytes, .count = 1}, there = {.address = remote, .bytes = bytes, .device = device, .count = 1};
	struct tn_xfer_list *from = NULL, *to = NULL;
	struct tn_xfer_request *q = NULL;
	char text[64];
	int n = snprintf(text, sizeof(text), "%s of %" PRIu64 " bytes", op == TN_XFER_WRITE ? "put" : "get", bytes);
	int rc = tn_xfer_register(agent, TN_XFER_DRAM, &s, 1);

	if (rc == 0)
		rc = tn_xfer_list_create(agent, NULL, TN_XFER_DRAM, &here, 1, &from);
	if (rc == 0)
		rc = tn_xfer_list_create(agent, peer, segment, &there, 1, &to);
	if (rc == 0)
		rc = tn_xfer_request_create(agent, op, from, NULL, to, NULL, 0, NULL, &q);
	if (rc == 0)
		rc = tn_xfer_post(q, cli_now_ns() + 6 * PATIENCE_NS, text, peer ? (uint32_t)n : TN_XFER_NO_NOTIFICATION);
	if (rc == 0)
		rc = tn_xfer_wait(q, TN_FOREVER);
	tn_xfer_list_destroy(from);
	tn_xfer_list_destroy(to);
	tn_xfer_cancel(q, TN_FOREVER);
	tn_xfer_release(q);
	return rc ? cli_fail(rc, NULL) : CLI_OK;
}

/* A file of get until all is there: PATH.XXXXXX, which then takes PATH's place. A put has none (""). */
typedef char part_name[PATH_MAX];

/* The file mapped, as long as it is to be; CLI_OK. */
static int map_file(enum tn_xfer_op op, const char *path, uint64_t section_bytes, struct xfer_args *a, part_name part, void **out)
{
	uint64_t most = section_bytes > a->offset ? section_bytes - a->offset : 0;
	struct stat st;
	int fd, rc = CLI_OK;

	*part = 0;
	if (op == TN_XFER_READ && lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
		return cli_error(CLI_USAGE, "%s: is there, and is no regular file", path);
	if (op == TN_XFER_READ && snprintf(part, PATH_MAX, "%s.XXXXXX", path) >= PATH_MAX)
		return cli_error(CLI_USAGE, "%s: %s", path, strerror(ENAMETOOLONG));
	fd = op == TN_XFER_WRITE ? open(path, O_RDONLY | O_CLOEXEC) : mkostemp(part, O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st))
		return cli_error(CLI_USAGE, "%s: %s", path, strerror(errno));
	if (!a->bytes)
		a->bytes = op == TN_XFER_WRITE ? (uint64_t)st.st_size : most;
	if (op == TN_XFER_WRITE && a->bytes > (uint64_t)st.st_size)
		rc = cli_error(CLI_USAGE, "--bytes %" PRIu64 ": %s has %" PRIu64, a->bytes, path, (uint64_t)st.st_size);
	else if (!a->bytes || a->bytes > most)
		rc = !a->bytes && op == TN_XFER_WRITE
			? cli_error(CLI_USAGE, "%s: has no bytes", path)
			: cli_error(CLI_USAGE, "%" PRIu64 " bytes at offset %" PRIu64 ": what is there has %" PRIu64, a->bytes, a->offset, section_bytes);
	else if (op == TN_XFER_READ && ftruncate(fd, (off_t)a->bytes))
		rc = cli_error(CLI_ENVIRONMENT, "%s: %s", path, strerror(errno));
	if (rc == CLI_OK) {
		*out = mmap(NULL, a->bytes, op == TN_XFER_WRITE ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (*out == MAP_FAILED)
			rc = cli_error(CLI_ENVIRONMENT, "%s: %s", path, strerror(errno));
	}
	close(fd);
	if (rc && *part)
		unlink(part);
	return rc;
}

/* What get has read takes the place of the file that is there. */
static int keep(const char *part, const char *path)
{
	if (!*part || rename(part, path) == 0)
		return CLI_OK;
	return cli_error(CLI_ENVIRONMENT, "%s: %s", path, strerror(errno));
}

/* Moves the mapped bytes, and says how long that took. */
static int move_mapped(struct tn_xfer_agent *agent, enum tn_xfer_op op, void *memory, const char *peer, uint64_t address, uint64_t device, const struct xfer_args *a,
		       const char *part, const char *path)
{
	uint64_t begin = cli_now_ns();
	char bytes[32];
	int rc = move(agent, op, memory, peer, address + a->offset, device, a->bytes);

	munmap(memory, a->bytes);
	rc = rc ? rc : keep(part, path);
	if (rc && *part)
		unlink(part);
	if (rc)
		return rc;
	printf("%s in %.1f ms\n", cli_bytes(bytes, (double)a->bytes), (double)(cli_now_ns() - begin) / 1e6);
	return cli_finish(CLI_OK);
}

static int move_file(struct tn_xfer_agent *agent, enum tn_xfer_op op, char **argv, struct xfer_args *a)
{
	struct tn_xfer_peer_section s;
	char peer[TN_XFER_NAME_BYTES];
	part_name part;
	void *memory;
	int rc = fetch(agent, a, argv[1], peer);

	if (rc)
		return rc;
	if (tn_xfer_peer_sections(agent, peer, 0, 1, &s) != 1 || s.segment != TN_XFER_DRAM)
		return cli_error(CLI_PROBLEM, "the agent at %s has no section of memory", argv[1]);
	rc = map_file(op, argv[2], s.bytes, a, part, &memory);
	return rc ? rc : move_mapped(agent, op, memory, peer, s.address, s.device, a, part, argv[2]);
}

/* Registers the object of s3://BUCKET/KEY as device 0. *bytes: how long it is, if it is to be read. */
static int open_object(struct tn_xfer_agent *agent, enum tn_xfer_op op, const char *address, uint64_t *bytes)
{
	const char *bucket = address + strlen(OBJECT_SCHEME), *slash = strchr(bucket, '/');
	struct tn_xfer_section s = {.meta = slash ? slash + 1 : ""};
	struct tn_xfer_found found = {.bytes = 0};
	char spec[128];
	int rc;

	if (!slash || slash == bucket || slash - bucket > 63 || !slash[1])
		return cli_error(CLI_USAGE, "%s: s3://BUCKET/KEY is wanted", address);
	snprintf(spec, sizeof(spec), "s3,bucket=%.*s", (int)(slash - bucket), bucket);
	rc = tn_xfer_backend_add(agent, spec);
	if (rc == 0)
		rc = tn_xfer_register(agent, TN_XFER_OBJECT, &s, 1);
	if (rc == 0 && op == TN_XFER_READ)
		rc = tn_xfer_query(agent, TN_XFER_OBJECT, &s, 1, &found);
	if (rc)
		return cli_fail(rc, NULL);
	if (op == TN_XFER_READ && !found.exists)
		return cli_error(CLI_PROBLEM, "%s: there is no such object", address);
	*bytes = op == TN_XFER_READ ? found.bytes : UINT64_MAX;
	return CLI_OK;
}

static int move_object(struct tn_xfer_agent *agent, enum tn_xfer_op op, char **argv, struct xfer_args *a)
{
	uint64_t bytes = 0;
	part_name part;
	void *memory;
	int rc = open_object(agent, op, argv[1], &bytes);

	if (rc == CLI_OK)
		rc = map_file(op, argv[2], bytes, a, part, &memory);
	return rc ? rc : move_mapped(agent, op, memory, NULL, 0, 0, a, part, argv[2]);
}

static int run_move(const struct cli_verb *verb, enum tn_xfer_op op, int argc, char **argv)
{
	struct xfer_args a = {0};
	struct tn_xfer_agent *agent;
	int n, rc = cli_parse(verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	rc = agent_open(&a, op == TN_XFER_WRITE ? "put" : "get", &agent);
	if (rc)
		return rc;
	rc = !strncmp(argv[1], OBJECT_SCHEME, strlen(OBJECT_SCHEME)) ? move_object(agent, op, argv, &a) : move_file(agent, op, argv, &a);
	tn_xfer_agent_destroy(agent);
	return rc;
}

static int run_put(int argc, char **argv)
{
	return run_move(&put_verb, TN_XFER_WRITE, argc, argv);
}

static int run_get(int argc, char **argv)
{
	return run_move(&get_verb, TN_XFER_READ, argc, argv);
}

static const struct cli_command commands[] = {
	{"backends", run_backends, "what the library can move bytes with"},
	{"info", run_info, "what an agent that listens says of itself"},
	{"listen", run_listen, "listen with some memory, and print notifications"},
	{"put", run_put, "write a file's bytes into the memory of an agent, or into an object"},
	{"get", run_get, "read an agent's memory, or an object, into a file"},
	{NULL, NULL, NULL},
};

int cmd_xfer(int argc, char **argv)
{
	return cli_dispatch("tenuto xfer", "Looks at transfer agents, and moves bytes by hand.", commands, argc, argv);
}
