/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto store info|verify|check|flush DIR...`, `tenuto store format`: what stores hold, whether every byte of them is good, whether
 * their index is sound - and its repair from the block headers.
 *
 * verify and check work on stores that no process has open, info on any: of one that a process serves it asks that process, too. flush is
 * for these alone.
 */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <tenuto/admin.h>
#include <tenuto/cache.h>

#include "store_live.h"

struct store_args {
	const char *instance;
	bool rebuild;
	bool json;
};

#define COMMON                                                                                             \
	{"instance", "NAME", "default", "which part of the directories: DIR/NAME", CLI_STRING,             \
	 offsetof(struct store_args, instance), 0, 0},                                                     \
		{"json", NULL, NULL, "print the result as JSON", CLI_FLAG, offsetof(struct store_args, json), 0, 0}

static const struct cli_opt plain_options[] = {COMMON, {0}};
static const struct cli_opt check_options[] = {
	{"rebuild", NULL, NULL, "restore superblocks, make the index anew from the block headers", CLI_FLAG,
	 offsetof(struct store_args, rebuild), 0, 0},
	COMMON,
	{0},
};

static const struct cli_verb info_verb = {
	.name = "store info",
	.operands = "DIR...",
	.about = "Prints what the devices of a store are and hold. Changes nothing; works beside the process that has it open, and asks it how "
		 "they are now if it serves its cache.",
	.opts = plain_options,
	.min_operands = 1,
	.max_operands = TN_DEVICES_MAX,
};

static const struct cli_verb flush_verb = {
	.name = "store flush",
	.operands = "DIR...",
	.about = "Has the process that has the store open, and serves it, write everything that host memory holds for the disks, and make it "
		 "durable. Ends when that is so.",
	.opts = plain_options,
	.min_operands = 1,
	.max_operands = TN_DEVICES_MAX,
};

static const struct cli_verb verify_verb = {
	.name = "store verify",
	.operands = "DIR...",
	.about = "Reads every block of a store and checks every object against its checksum. Names each bad block with its "
		 "file, slot and key. Changes nothing.",
	.opts = plain_options,
	.min_operands = 1,
	.max_operands = TN_DEVICES_MAX,
};

static const struct cli_verb check_verb = {
	.name = "store check",
	.operands = "DIR...",
	.about = "Checks superblocks, log and checkpoints of a store and compares its index with the block headers; the blocks' own "
		 "bytes are for `tenuto store verify`. Changes nothing unless --rebuild is given: then the index is made anew from "
		 "every header that is good. Blocks that were evicted or dropped and not yet written over are in it again, as good "
		 "as they were; a cache that is opened with a smaller capacity drops those that do not fit.",
	.opts = check_options,
	.min_operands = 1,
	.max_operands = TN_DEVICES_MAX,
};

/* What is printed while the library works. */
struct told {
	json_t *lines; /* with --json */
	struct cli_progress progress;
	bool begun;
	bool repairs; /* repairs are printed, too, not only problems */
	bool problem; /* a warning was printed */
};

static void on_log(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	struct told *t = arg;
	char line[4096];

	if (level > (t->repairs ? TN_LOG_INFO : TN_LOG_WARN))
		return;
	cli_progress_end(&t->progress);
	t->problem |= level <= TN_LOG_WARN;
	if (t->lines)
		json_array_append_new(t->lines, json_string(cli_utf8(line, sizeof(line), text)));
	else
		cli_error(CLI_PROBLEM, "%s%s", level <= TN_LOG_WARN ? "problem: " : "", text);
}

static bool on_progress(void *arg, uint64_t done, uint64_t total)
{
	struct told *t = arg;

	if (!t->begun) {
		cli_progress_begin(&t->progress, "reading", total);
		t->begun = true;
	}
	t->progress.total = total;
	cli_progress_step(&t->progress, done);
	return !cli_interrupted();
}

/*
 * People also give the file, or the directory of the instance, instead of the store's directory. For these the library
 * could only say what it did not find below.
 */
static int check_dir(const char *dir, const char *instance, bool alone)
{
	char path[4096];
	struct stat st;
	int rc;

	if (!stat(dir, &st) && S_ISREG(st.st_mode))
		rc = cli_error(CLI_USAGE, "%s: is not a directory; give the one that the cache was opened with", dir);
	else
		rc = cli_check_place("", dir);
	if (rc || cli_is_drive(dir))
		return rc ? rc : CLI_GO;
	snprintf(path, sizeof(path), "%s/%s/tenuto.store", dir, instance);
	if (!access(path, F_OK) || errno != ENOENT)
		return CLI_GO;
	snprintf(path, sizeof(path), "%s/tenuto.store", dir);
	if (!access(path, F_OK))
		return cli_error(CLI_USAGE, "%s is an instance of a store: give the directory above it, and --instance if it "
				 "is not called default", dir);
	if (!alone) /* a device is lost, or the other devices belong to another store */
		return CLI_GO;
	return cli_error(CLI_USAGE, "no store in %s: there is no %s/tenuto.store", dir, instance);
}

/* Parses and fills *store; the directories are argv[1..]. */
static int begin(const struct cli_verb *v, int argc, char **argv, struct store_args *a, struct tn_admin_store *store,
		 struct told *told)
{
	int n, rc;

	memset(told, 0, sizeof(*told));
	memset(a, 0, sizeof(*a));
	a->instance = "default";
	rc = cli_parse(v, argc, argv, a, &n);
	for (int i = 0; rc == CLI_GO && i < n; i++)
		rc = check_dir(argv[1 + i], a->instance, n == 1);
	for (int i = 0; rc == CLI_GO && i < n; i++)
		if (cli_find_same((const char *const *)(argv + 1), (size_t)i) < (size_t)i)
			rc = cli_error(CLI_USAGE, "%s is given twice: leave one of them out", argv[1 + i]);
	if (rc != CLI_GO)
		return rc;
	tn_admin_store_init(store);
	store->dirs = (const char *const *)(argv + 1);
	store->ndirs = (size_t)n;
	store->instance = a->instance;
	store->log = on_log;
	store->log_arg = told;
	store->progress = on_progress;
	store->progress_arg = told;
	told->repairs = a->rebuild;
	told->lines = a->json ? json_array() : NULL;
	cli_catch_interrupts();
	return CLI_GO;
}

static int failed(const struct tn_admin_store *store, struct told *told, int rc)
{
	cli_progress_end(&told->progress);
	json_decref(told->lines);
	if (rc == -ECANCELED && cli_interrupted())
		return cli_error(CLI_ENVIRONMENT, "interrupted");
	if (rc == -EBUSY)
		return store_is_in_use(store);
	return cli_fail(rc, NULL);
}

/* ---- info -------------------------------------------------------------------------------------- */

static void uuid_text(char *to, const uint64_t uuid[2])
{
	snprintf(to, 40, "%08x-%04x-%04x-%04x-%012" PRIx64, (unsigned)(uuid[0] >> 32), (unsigned)(uuid[0] >> 16) & 0xffffu,
		 (unsigned)uuid[0] & 0xffffu, (unsigned)(uuid[1] >> 48), uuid[1] & 0xffffffffffffu);
}

/* Bytes that a device can hold, the blocks' headers included. All devices of a store have the same capacity. */
static uint64_t capacity(const struct tn_admin_device *d)
{
	return d->segments * d->segment_bytes;
}

/* As many blocks of the sizes that are there; 0: none is there yet. */
static uint64_t capacity_blocks(const struct tn_admin_device *d)
{
	return d->segments_assigned ? d->slots * d->segments / d->segments_assigned : 0;
}

/* Bytes of the capacity that blocks take: the mean slot counts for each, because a device may have slots of several sizes. */
static uint64_t used_bytes(const struct tn_admin_device *d)
{
	return d->slots ? (uint64_t)((double)d->blocks / (double)d->slots * d->segments_assigned * (double)d->segment_bytes) : 0;
}

static json_t *device_json(const struct tn_admin_device *d)
{
	const struct {
		const char *name;
		uint64_t value;
	} counts[] = {
		{"device_index", d->device_index},
		{"device_count", d->device_count},
		{"format_version", d->format_version},
		{"owner_pid", d->owner_pid},
		{"created_wall_ns", d->created_wall_ns},
		{"opened_wall_ns", d->opened_wall_ns},
		{"file_bytes", d->file_bytes},
		{"index_bytes", d->index_bytes},
		{"capacity_bytes", capacity(d)},
		{"estimated_capacity_blocks", capacity_blocks(d)},
		{"estimated_used_bytes", used_bytes(d)},
		{"segment_bytes", d->segment_bytes},
		{"segments", d->segments},
		{"segments_allocated", d->segments_allocated},
		{"segments_assigned", d->segments_assigned},
		{"slots", d->slots},
		{"blocks", d->blocks},
		{"quarantined_slots", d->quarantined},
		{"log_bytes", d->log_bytes},
		{"log_used_bytes", d->log_used_bytes},
		{"checkpoints", d->checkpoints},
		{"spaces", d->spaces},
	};
	json_t *o = json_object();
	char uuid[40], path[4 * sizeof(d->path)];

	json_object_set_new(o, "path", json_string(cli_utf8(path, sizeof(path), d->path)));
	uuid_text(uuid, d->store_uuid);
	json_object_set_new(o, "store_uuid", json_string(uuid));
	uuid_text(uuid, d->device_uuid);
	json_object_set_new(o, "device_uuid", json_string(uuid));
	json_object_set_new(o, "clean", json_boolean(d->clean));
	json_object_set_new(o, "in_use", json_boolean(d->in_use));
	json_object_set_new(o, "missing", json_boolean(d->missing));
	json_object_set_new(o, "superblock_damaged", json_boolean(d->superblock_damaged));
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		json_object_set_new(o, counts[i].name, json_integer((json_int_t)counts[i].value));
	return o;
}

static void row(struct cli_table *t, const char *name, const char *value)
{
	cli_table_cell(t, "%s", name);
	cli_table_cell(t, "%s", value);
}

static void row_sizes(struct cli_table *t, const struct tn_admin_device *d)
{
	char a[32], b[32], c[32], line[160];

	cli_bytes(a, (double)capacity(d));
	snprintf(line, sizeof(line), "%s; all %u devices: %s", a, d->device_count, cli_bytes(b, (double)capacity(d) * d->device_count));
	row(t, "capacity", d->device_count > 1 ? line : a);
	snprintf(line, sizeof(line), "about %s; %s of about %s blocks", cli_bytes(a, (double)used_bytes(d)), cli_number(b, d->blocks),
		 cli_number(c, capacity_blocks(d)));
	row(t, "used", d->slots ? line : "nothing yet");
	row(t, "file", cli_bytes(a, (double)d->file_bytes));
	row(t, "index", cli_bytes(a, (double)d->index_bytes));
	snprintf(line, sizeof(line), "%s of %s in use", cli_bytes(a, (double)d->log_used_bytes),
		 cli_bytes(b, (double)d->log_bytes));
	row(t, "log", line);
	snprintf(line, sizeof(line), "%u of %s; %u allocated, %u in use", d->segments,
		 cli_bytes(a, (double)d->segment_bytes), d->segments_allocated, d->segments_assigned);
	row(t, "segments", line);
	snprintf(line, sizeof(line), "%s in %s slots; %" PRIu64 " quarantined", cli_number(a, d->blocks),
		 cli_number(b, d->slots), d->quarantined);
	row(t, "blocks", line);
}

static void print_device(const struct tn_admin_device *d)
{
	const bool left[] = {true, true};
	struct cli_table t;
	char line[128], uuid[40];
	time_t opened = (time_t)(d->opened_wall_ns / 1000000000u);
	struct tm tm;

	cli_table_init(&t, 2, left);
	row(&t, "device", d->path);
	snprintf(line, sizeof(line), "%u of %u, format version %u", d->device_index + 1, d->device_count, d->format_version);
	row(&t, "number", line);
	uuid_text(uuid, d->store_uuid);
	row(&t, "store", uuid);
	uuid_text(uuid, d->device_uuid);
	row(&t, "identity", uuid);
	if (d->missing)
		snprintf(line, sizeof(line), "missing: the store goes on without it, or makes it anew");
	else if (d->in_use)
		snprintf(line, sizeof(line), "in use by process %u", d->owner_pid);
	else
		snprintf(line, sizeof(line), "%s", d->clean ? "closed in order" : "not closed in order: opening recovers it");
	row(&t, "state", line);
	if (d->superblock_damaged)
		row(&t, "problem", "a copy of the superblock is damaged; opening or check --rebuild repairs it");
	gmtime_r(&opened, &tm);
	strftime(line, sizeof(line), "%Y-%m-%d %H:%M:%S UTC", &tm);
	row(&t, "last opened", line);
	row_sizes(&t, d);
	cli_table_print(&t, stdout, false);
}

/* *asked: somebody serves the store and says what it does now. -EACCES: this user may not be told; why is the library's last error. */
static int ask_owner(const struct tn_admin_store *store, struct store_live *live, bool *asked)
{
	struct tn_cache *cache;
	int rc = store_owner(store, &cache);

	*asked = false;
	if (rc)
		return rc == -EACCES ? rc : 0;
	rc = store_live_ask(cache, live);
	*asked = rc == 0;
	tn_cache_close(cache);
	return rc;
}

static int store_info(int argc, char **argv)
{
	struct tn_admin_device device[TN_DEVICES_MAX];
	struct tn_admin_store store;
	struct store_live live;
	struct store_args a;
	struct told told;
	json_t *list;
	bool bad, in_use, asked;
	int rc = begin(&info_verb, argc, argv, &a, &store, &told);

	if (rc != CLI_GO)
		return rc;
	rc = tn_admin_store_info(&store, device);
	if (rc)
		return failed(&store, &told, rc);
	bad = told.problem;
	in_use = asked = false;
	for (size_t i = 0; i < store.ndirs; i++)
		in_use |= device[i].in_use;
	if (in_use)
		rc = ask_owner(&store, &live, &asked);
	if (rc == -EACCES)
		cli_error(CLI_OK, "what the store's owner does now is not shown: %s", tn_error_last()->text);
	else if (rc)
		return failed(&store, &told, rc);
	list = json_array();
	for (size_t i = 0; i < store.ndirs; i++) {
		bad |= device[i].superblock_damaged || device[i].missing;
		if (a.json) {
			json_array_append_new(list, device_json(&device[i]));
			continue;
		}
		if (i)
			putchar('\n');
		print_device(&device[i]);
		if (asked)
			store_live_print(&live, device[i].device_index);
	}
	if (a.json) {
		rc = cli_json(json_pack("{s:I, s:o, s:o, s:o}", "capacity_bytes", (json_int_t)(capacity(device) * device->device_count),
					"devices", list, "notes", told.lines, "owner", asked ? store_live_json(&live) : json_null()));
		return rc ? rc : bad ? CLI_PROBLEM : CLI_OK;
	}
	json_decref(list);
	return cli_finish(bad ? CLI_PROBLEM : CLI_OK);
}

/* ---- verify and check -------------------------------------------------------------------------- */

/* Prints the totals; each bad block was named when it was found. */
static void print_verified(const struct tn_admin_verify *r, bool told, double seconds)
{
	const struct {
		uint64_t n;
		const char *one, *more, *what;
	} bad[] = {
		{r->corrupt_objects, "object has", "objects have", "a wrong checksum"},
		{r->corrupt_blocks, "block has", "blocks have", "no header that fits the index: the objects could not be checked"},
		{r->io_errors, "block", "blocks", "could not be read (I/O errors)"},
		{r->lost_segments, "segment is", "segments are", "damaged or cut off: the blocks there were not looked at"},
	};
	char n[32], b[32];
	bool any = told;

	printf("checked: %s objects", cli_number(n, r->objects));
	printf(" of %s blocks; read: %s at %.2f GB/s\n", cli_number(n, r->blocks), cli_bytes(b, (double)r->bytes),
	       seconds > 0 ? (double)r->bytes * 1e-9 / seconds : 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (bad[i].n)
			printf("bad:     %s %s %s\n", cli_number(n, bad[i].n), bad[i].n == 1 ? bad[i].one : bad[i].more, bad[i].what);
		any |= bad[i].n > 0;
	}
	puts(any ? "Each was named above. It is a miss when asked for, never wrong bytes."
		 : "bad:     nothing");
}

static int store_verify(int argc, char **argv)
{
	struct tn_admin_verify r = {0};
	struct tn_admin_store store;
	struct store_args a;
	struct told told;
	uint64_t start = cli_now_ns();
	double s;
	bool bad;
	int rc = begin(&verify_verb, argc, argv, &a, &store, &told);

	if (rc != CLI_GO)
		return rc;
	rc = tn_admin_store_verify(&store, &r);
	if (rc)
		return failed(&store, &told, rc);
	cli_progress_end(&told.progress);
	s = (double)(cli_now_ns() - start) * 1e-9;
	bad = told.problem || r.corrupt_blocks + r.corrupt_objects + r.io_errors + r.lost_segments > 0;
	if (a.json) {
		rc = cli_json(json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:o}", "blocks", (json_int_t)r.blocks,
					"objects", (json_int_t)r.objects, "bytes", (json_int_t)r.bytes, "corrupt_blocks",
					(json_int_t)r.corrupt_blocks, "corrupt_objects", (json_int_t)r.corrupt_objects,
					"io_errors", (json_int_t)r.io_errors, "lost_segments",
					(json_int_t)r.lost_segments, "wall_seconds", s, "notes", told.lines));
		return rc ? rc : bad ? CLI_PROBLEM : CLI_OK;
	}
	print_verified(&r, told.problem, s);
	return cli_finish(bad ? CLI_PROBLEM : CLI_OK);
}

/* tn_admin_store_info without its log. */
static int silent_info(const struct tn_admin_store *store, struct tn_admin_device *device)
{
	struct tn_admin_store silent = *store;

	silent.log = NULL;
	return tn_admin_store_info(&silent, device);
}

/* Blocks in the indexes of all devices, or UINT64_MAX if that cannot be read. */
static uint64_t blocks_before(const struct tn_admin_store *store)
{
	struct tn_admin_device device[TN_DEVICES_MAX];
	uint64_t sum = 0;

	if (silent_info(store, device))
		return UINT64_MAX;
	for (size_t i = 0; i < store->ndirs; i++)
		sum += device[i].blocks;
	return sum;
}

static json_t *check_json(const struct tn_admin_check *r, bool rebuilt, uint64_t before, json_t *notes)
{
	json_t *o = json_pack("{s:I, s:I, s:I, s:I, s:o}", "problems", (json_int_t)r->problems, "repaired", (json_int_t)r->repaired,
			      "blocks", (json_int_t)r->blocks, "stale", (json_int_t)r->stale, "notes", notes);

	if (rebuilt) {
		json_object_set_new(o, "segments_restored", json_integer((json_int_t)r->segments_restored));
		json_object_set_new(o, "segments_lost", json_integer((json_int_t)r->segments_lost));
		json_object_set_new(o, "headers_damaged", json_integer((json_int_t)r->headers_damaged));
		json_object_set_new(o, "headers_unreadable", json_integer((json_int_t)r->headers_unreadable));
		json_object_set_new(o, "blocks_superseded", json_integer((json_int_t)r->blocks_superseded));
		json_object_set_new(o, "blocks_dropped", json_integer((json_int_t)r->blocks_dropped));
	}
	if (before != UINT64_MAX)
		json_object_set_new(o, "blocks_before", json_integer((json_int_t)before));
	return o;
}

static void print_checked(const struct tn_admin_check *r, bool rebuilt, uint64_t before)
{
	char n[32], s[32], b[32];

	printf("%s blocks in the index", cli_number(n, r->blocks));
	if (before != UINT64_MAX)
		printf(" (%s before)", cli_number(b, before));
	printf(", %s of them stale; %" PRIu64 " problem%s", cli_number(s, r->stale), r->problems, r->problems == 1 ? "" : "s");
	if (r->problems)
		printf(", %" PRIu64 " repaired", r->repaired);
	putchar('\n');
	if (before != UINT64_MAX && r->blocks > before)
		cli_wrap(stdout, 0, "Those that came back were evicted or dropped; the next cache drops those that do not fit its capacity.");
	if (r->problems > r->repaired && !rebuilt)
		cli_wrap(stdout, 0, "--rebuild restores what can be restored; nothing that is not good is ever given back, with or without it.");
	puts("The blocks' bytes were not read: `tenuto store verify` does that.");
}

static int store_check(int argc, char **argv)
{
	struct tn_admin_check r = {0};
	struct tn_admin_store store;
	struct store_args a;
	struct told told;
	uint64_t before = UINT64_MAX;
	bool bad;
	int rc = begin(&check_verb, argc, argv, &a, &store, &told);

	if (rc != CLI_GO)
		return rc;
	if (a.rebuild)
		before = blocks_before(&store);
	rc = tn_admin_store_check(&store, a.rebuild ? TN_ADMIN_REBUILD : 0, &r);
	if (rc)
		return failed(&store, &told, rc);
	cli_progress_end(&told.progress);
	bad = r.problems > r.repaired; /* told.problem is set by repairs, too */
	if (a.json) {
		rc = cli_json(check_json(&r, a.rebuild, before, told.lines));
		return rc ? rc : bad ? CLI_PROBLEM : CLI_OK;
	}
	print_checked(&r, a.rebuild, before);
	return cli_finish(bad ? CLI_PROBLEM : CLI_OK);
}

/* ---- flush ------------------------------------------------------------------------------------- */

/* One owner is asked for all that is given: it must be of one store. CLI_GO, or the exit code after a message. */
static int check_one_store(const struct tn_admin_store *store)
{
	struct tn_admin_device device[TN_DEVICES_MAX];
	int rc;

	if (store_is_on_drives(store))
		return cli_error(CLI_USAGE, "%s: the owner's socket is found by a directory of the store, and a drive has none; `tenuto status SOCKET` shows "
				 "what waits for the disks, and the owner's end makes it durable", store->dirs[0]);
	if (store->ndirs == 1)
		return CLI_GO;
	for (size_t i = 0; i < store->ndirs; i++)
		if (cli_is_drive(store->dirs[i])) /* only its owner can look into it */
			return cli_error(CLI_USAGE, "%s: give the store's directories alone: its drives are made durable with them", store->dirs[i]);
	rc = silent_info(store, device);
	return rc ? cli_fail(rc, NULL) : CLI_GO;
}

static int store_flush(int argc, char **argv)
{
	struct tn_admin_device device[TN_DEVICES_MAX];
	struct tn_admin_store store;
	struct tn_cache *cache;
	struct store_args a;
	struct told told;
	uint64_t start;
	double seconds;
	int rc = begin(&flush_verb, argc, argv, &a, &store, &told);

	if (rc != CLI_GO)
		return rc;
	json_decref(told.lines);
	rc = check_one_store(&store);
	if (rc != CLI_GO)
		return rc;
	rc = store_owner(&store, &cache);
	if (rc) {
		const struct tn_error why = *tn_error_last();
		int no_store = rc == -ENOENT ? silent_info(&store, device) : 0;

		if (no_store)
			return cli_fail(no_store, NULL);
		if (rc == -ENOENT || rc == -ECONNREFUSED)
			return cli_error(CLI_ENVIRONMENT, "not flushed: %s; a process that has it open without a socket flushes it at its end", why.text);
		return cli_error(CLI_ENVIRONMENT, "cannot flush: %s", why.text);
	}
	start = cli_now_ns();
	do /* a second at a time, so that an interrupt ends it */
		rc = tn_flush(cache, cli_now_ns() + 1000000000u);
	while (rc == -ETIMEDOUT && !cli_interrupted());
	seconds = (double)(cli_now_ns() - start) * 1e-9;
	if (rc)
		rc = rc == -ETIMEDOUT ? cli_error(CLI_ENVIRONMENT, "interrupted") : cli_fail(rc, NULL);
	else if (a.json)
		rc = cli_json(json_pack("{s:f}", "wall_seconds", seconds));
	else
		printf("everything is durable, after %.3f s\n", seconds);
	tn_cache_close(cache);
	return rc ? rc : cli_finish(CLI_OK);
}

/* ---- format ------------------------------------------------------------------------------------ */

struct format_args {
	const char *nvme, *serial;
};

static const struct cli_opt format_options[] = {
	{"nvme", "DRIVE", NULL, "the drive: its address on the PCI bus (0000:03:00.0), or a block device (/dev/nvme0n1)", CLI_STRING,
	 offsetof(struct format_args, nvme), 0, 0},
	{"force-serial", "SERIAL", NULL, "take the drive with this serial number, whatever it holds", CLI_STRING, offsetof(struct format_args, serial), 0, 0},
	{0},
};

static const struct cli_verb format_verb = {
	.name = "store format",
	.about = "Makes the namespace of an NVMe drive ready for a store, which the next cache that is given nvme:ADDRESS in the place of a directory "
		 "makes there. What it held is gone. Refuses a drive that is in use, or holds what is not Tenuto's, and never takes one from its "
		 "driver: it says what to do.",
	.opts = format_options,
};

static int store_format(int argc, char **argv)
{
	struct format_args a = {0};
	int n, rc = cli_parse(&format_verb, argc, argv, &a, &n);
	struct told told = {0};

	if (rc != CLI_GO)
		return rc;
	if (!a.nvme)
		return cli_error(CLI_USAGE, "--nvme is missing: which drive? `tenuto doctor` lists them");
	rc = tn_admin_format(a.nvme, a.serial, on_log, &told);
	if (rc)
		return cli_fail(rc, NULL);
	printf("%s is ready for a store\n", a.nvme);
	return cli_finish(CLI_OK);
}

static const struct cli_command commands[] = {
	{"info", store_info, "what a store is and holds"},
	{"verify", store_verify, "read every block and check every checksum"},
	{"flush", store_flush, "have the process that has a store open make everything durable"},
	{"check", store_check, "is the index sound; --rebuild repairs it"},
	{"format", store_format, "make an NVMe drive ready for a store"},
	{NULL, NULL, NULL},
};

int cmd_store(int argc, char **argv)
{
	return cli_dispatch("tenuto store", "Looks into the stores on disk.", commands, argc, argv);
}
