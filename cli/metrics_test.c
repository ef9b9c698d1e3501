/* SPDX-License-Identifier: Apache-2.0 */
/* The text of the metrics: that nothing that the library counts is missing, that values are the library's, that histograms add up. */
#include <ftw.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <tenuto/tenuto.h>

#include "metrics.h"
#include "tn_test.h"

#define BLOCKS 3u
#define BLOCK_BYTES 65536u

/* A cache with blocks that were saved, found and loaded; and its metrics. */
struct fixture {
	char dir[64];
	char *memory;
	struct tn_cache *cache;
	struct tn_space *space;
	struct tn_memory *registered;
	struct tn_pool *pool;
	char *text;
};

static void save_and_load(struct fixture *f)
{
	struct tn_match match = {.size = sizeof(match)};
	const struct tn_key keys[BLOCKS] = {{{1, 1}}, {{2, 2}}, {{3, 3}}};
	const uint32_t pages[BLOCKS] = {0, 1, 2};
	struct tn_save *save;
	struct tn_load *load;

	assert_int_equal(tn_save_begin(f->space, f->pool, keys, BLOCKS, pages, NULL, &save), 0);
	assert_int_equal(tn_save_layer(save, 0, NULL, 0), 0);
	assert_int_equal(tn_save_commit(save), 0);
	assert_int_equal(tn_save_end(save, tn_test_deadline(), NULL), 0);
	assert_int_equal(tn_flush(f->cache, tn_test_deadline()), 0);
	assert_int_equal(tn_match(f->space, keys, BLOCKS, NULL, &match, 0), BLOCKS);
	assert_int_equal(tn_load_begin(f->space, f->pool, keys, BLOCKS, pages, NULL, &load), 0);
	assert_int_equal(tn_load_wait(load, 0, tn_test_deadline()), BLOCKS);
	assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
}

static void print(struct fixture *f)
{
	size_t bytes;
	FILE *out;

	free(f->text);
	out = open_memstream(&f->text, &bytes);
	assert_non_null(out);
	assert_int_equal(metrics_print(f->cache, out), 0);
	fclose(out);
}

/* The directory's name has what labels have to escape. */
static void set_up(struct fixture *f)
{
	const struct tn_pool_layout layout = {.npages = BLOCKS, .base = &(uint64_t){0}, .stride = {BLOCK_BYTES}};
	struct tn_memory_range range = {.bytes = (uint64_t)BLOCKS * BLOCK_BYTES};
	struct tn_memory_desc desc;
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_geometry g;
	struct tn_cache_opts o;
	const char *dir = f->dir;

	memset(f, 0, sizeof(*f));
	snprintf(f->dir, sizeof(f->dir), "/var/tmp/tenuto-metrics-XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	f->memory = calloc(BLOCKS, BLOCK_BYTES);
	assert_non_null(f->memory);
	range.address = f->memory;
	tn_cache_opts_init(&o);
	o.dirs = &dir;
	o.ndirs = 1;
	o.disk_bytes = 16u << 20;
	o.write_bytes_per_day = 86400000;
	o.instance = "a\"b\\c\nd\377\xc3\xa4\355\240\200";
	assert_int_equal(tn_cache_open(&o, &f->cache), 0);
	tn_identity_init(&id);
	id.model = "m";
	tn_shard_init(&shard);
	assert_int_equal(tn_geometry_raw(1, BLOCK_BYTES, &g), 0);
	assert_int_equal(tn_space_open(f->cache, &id, &shard, &g, NULL, &f->space), 0);
	tn_memory_desc_init(&desc);
	desc.ranges = &range;
	desc.nranges = 1;
	assert_int_equal(tn_memory_register(f->cache, &desc, &f->registered), 0);
	assert_int_equal(tn_pool_create(f->registered, &g, &layout, &f->pool), 0);
	save_and_load(f);
	print(f);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static void tear_down(struct fixture *f)
{
	assert_int_equal(tn_pool_destroy(f->pool), 0);
	assert_int_equal(tn_memory_unregister(f->registered), 0);
	tn_space_close(f->space);
	assert_int_equal(tn_cache_close(f->cache), 0);
	assert_int_equal(nftw(f->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
	free(f->memory);
	free(f->text);
}

/* The value behind this beginning of a line; fails if there is no such line, or a second one. */
static double value_of(const struct fixture *f, const char *line)
{
	size_t n = strlen(line);
	double value = -1;
	int found = 0;

	for (const char *s = f->text; s && *s; s = strchr(s, '\n'), s += s != NULL)
		if (strncmp(s, line, n) == 0 && s[n] == ' ') {
			value = strtod(s + n, NULL);
			found++;
		}
	if (found != 1)
		fail_msg("%d lines of \"%s\"", found, line);
	return value;
}

/* What is so of the cache by the fixture's calls. */
static void values_are_the_caches(void **state)
{
	struct fixture f;

	set_up(&f);
	assert_true(value_of(&f, "tenuto_blocks") == BLOCKS);
	assert_true(value_of(&f, "tenuto_tier_blocks{tier=\"disk\"}") == BLOCKS);
	assert_true(value_of(&f, "tenuto_tier_blocks{tier=\"host\"}") == 0);
	assert_true(value_of(&f, "tenuto_lookups_total") == 1);
	assert_true(value_of(&f, "tenuto_hit_blocks_total") == BLOCKS);
	assert_true(value_of(&f, "tenuto_load_blocks_total") == BLOCKS);
	assert_true(value_of(&f, "tenuto_saved_blocks_total") == BLOCKS);
	assert_true(value_of(&f, "tenuto_written_bytes_total") == (double)BLOCKS * BLOCK_BYTES);
	assert_true(value_of(&f, "tenuto_match_seconds_count") == 1);
	assert_true(value_of(&f, "tenuto_save_seconds_count") == 1);
	assert_true(value_of(&f, "tenuto_flush_seconds_count") == 1);
	assert_true(value_of(&f, "tenuto_layer_wait_seconds_count") == 1);
	assert_true(value_of(&f, "tenuto_load_seconds_count{tier=\"disk\"}") == 1);
	assert_true(value_of(&f, "tenuto_load_seconds_count{tier=\"host\"}") == 0);
	assert_true(value_of(&f, "tenuto_recovery_seconds") < 60);
	assert_true(value_of(&f, "tenuto_loaded_bytes_total{tier=\"disk\"}") == (double)BLOCKS * BLOCK_BYTES);
	assert_true(value_of(&f, "tenuto_saved_bytes_total") == (double)BLOCKS * BLOCK_BYTES);
	assert_true(value_of(&f, "tenuto_sessions") == 0);
	assert_true(value_of(&f, "tenuto_attached_total") == 0);
	assert_true(value_of(&f, "tenuto_write_budget_bytes_per_second") == 1000);
	tear_down(&f);
}

/* Whether a sample is of devices, sessions, spaces or the owner. */
static bool is_of_more(const char *sample)
{
	static const char *const more[] = {"device_", "session", "build_info", "open_seconds", "attached_total", "write_budget",
					   "space_"};

	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++)
		if (strncmp(sample + 7, more[i], strlen(more[i])) == 0)
			return true;
	return false;
}

/* How many samples the text has, without those and histograms. */
static uint32_t statistics_in(const struct fixture *f)
{
	uint32_t n = 0;

	for (const char *s = f->text; s && *s; s = strchr(s, '\n'), s += s != NULL)
		n += strncmp(s, "tenuto_", 7) == 0 && !is_of_more(s);
	for (const char *s = f->text; (s = strstr(s, "_bucket{")); s++)
		n--;
	for (const char *s = f->text; (s = strstr(s, "_seconds_sum")); s++)
		n -= 2; /* and its count */
	return n;
}

static void every_statistic_of_the_library_is_told(void **state)
{
	struct fixture f;
	uint32_t n = 0;

	set_up(&f);
	while (tn_stat_name(n))
		n++;
	assert_int_equal(statistics_in(&f), n);
	tear_down(&f);
}

static void a_path_is_escaped_as_labels_are(void **state)
{
	char label[200];
	struct fixture f;

	set_up(&f);
	snprintf(label, sizeof(label), "tenuto_device_blocks{device=\"0\",path=\"%s/a\\\"b\\\\c\\nd\\\\xff\xc3\xa4\\\\xed\\\\xa0\\\\x80/tenuto.store\"}", f.dir);
	assert_true(value_of(&f, label) == BLOCKS);
	for (const char *s = f.text; s && *s; s = strchr(s, '\n'), s += s != NULL)
		assert_true(*s == '#' || strncmp(s, "tenuto_", 7) == 0);
	tear_down(&f);
}

/* Prometheus takes cumulative counts: each bound has those below, the last one all. */
static void buckets_add_up_and_hold_each_time_once(void **state)
{
	struct tn_latency l = {.size = sizeof(l)};
	struct fixture f;
	uint64_t last = 0, count, below = 0;
	uint32_t buckets = 0;
	double last_le = 0;

	set_up(&f);
	for (uint32_t i = 0; i < 1000; i++) {
		struct tn_match m = {.size = sizeof(m)};
		const struct tn_key key = {{i + 1, i + 1}};

		assert_true(tn_match(f.space, &key, 1, NULL, &m, 0) >= 0);
	}
	print(&f);
	assert_int_equal(tn_cache_latency(f.cache, TN_LATENCY_MATCH, TN_TIER_NONE, &l), 0);
	for (const char *s = f.text; (s = strstr(s, "tenuto_match_seconds_bucket{le=\"")); s++) {
		double le = strtod(strchr(s, '"') + 1, NULL);

		assert_true(le > last_le); /* inf, too */
		count = strtoull(strchr(s, ' '), NULL, 10);
		assert_true(count >= last);
		if (buckets == 0) /* 1,024 ns */
			for (uint32_t i = 0; tn_latency_bound_ns(i) <= 1024; i++)
				below += l.buckets[i];
		if (buckets == 0)
			assert_int_equal(count, below);
		last = count;
		last_le = le;
		buckets++;
	}
	assert_int_equal(buckets, 2 * 27 + 1);
	assert_int_equal(last, 1001);
	assert_true(value_of(&f, "tenuto_match_seconds_count") == 1001);
	tear_down(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values_are_the_caches),
		cmocka_unit_test(every_statistic_of_the_library_is_told),
		cmocka_unit_test(a_path_is_escaped_as_labels_are),
		cmocka_unit_test(buckets_add_up_and_hold_each_time_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
