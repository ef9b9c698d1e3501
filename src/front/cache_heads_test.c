/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks stored by head group: ranks of each TP size read what ranks of any size saved, a share at a time, and find a block once all shares are stored. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tenuto/heads.h>

#include "cache_rig.h"

#define LAYERS 3u
#define BLOCKS 5u
#define PAGES 4u /* per block */
#define GROUPS_MAX 8u
#define LIFE_S 120u /* a process that waits for longer is killed, and the test fails */

/* A model, as all of its ranks know it. */
struct model {
	uint32_t kv_heads, page_order;
};

/* A rank: its pages, which hold BLOCKS blocks, and its head groups. */
struct rank {
	struct rig *rig;
	struct tn_geometry g, stored;
	struct tn_head_groups h;
	struct tn_pool_layout layout;
	uint64_t base[2 * LAYERS], bytes;
	unsigned char *memory;
	struct tn_memory *registered;
	struct tn_pool *pool[GROUPS_MAX]; /* of the rank's groups */
	struct tn_space *space[GROUPS_MAX]; /* of all groups of the model */
};

static void open_spaces(struct rank *r)
{
	struct tn_identity id;
	struct tn_shard shard;

	tn_identity_init(&id);
	tn_shard_init(&shard);
	id.model = "canonical";
	shard.head_groups = r->h.total;
	for (uint32_t i = 0; i < r->h.total; i++) {
		shard.head_group = i;
		assert_int_equal(tn_space_open(r->rig->cache, &id, &shard, &r->stored, NULL, &r->space[i]), 0);
	}
}

static void open_pool(struct rank *r)
{
	struct tn_pool_shape shape = {.order = r->g.page_order == TN_PAGE_HND ? TN_POOL_CROSS_LAYER : TN_POOL_PLANES_PAGES, .npages = BLOCKS * PAGES};
	struct tn_memory_range range;
	struct tn_pool_layout view;
	struct tn_memory_desc desc;
	uint64_t each, base[2 * LAYERS];
	uint32_t regions;

	assert_int_equal(tn_layout_regions(&r->g, &shape, &regions, &each), 0);
	assert_int_equal(tn_layout_fill(&r->g, &shape, NULL, r->base, &r->layout), 0);
	r->bytes = regions * each;
	r->memory = rig_memory(r->rig, r->bytes);
	range = (struct tn_memory_range){.address = r->memory, .bytes = r->bytes};
	tn_memory_desc_init(&desc);
	desc.ranges = &range, desc.nranges = 1;
	assert_int_equal(tn_memory_register(r->rig->cache, &desc, &r->registered), 0);
	for (uint32_t i = 0; i < r->h.count; i++) {
		assert_int_equal(tn_head_group_layout(&r->g, &r->layout, &r->h, i, base, &view), 0);
		assert_int_equal(tn_pool_create(r->registered, &r->stored, &view, &r->pool[i]), 0);
	}
}

static void rank_open(struct rank *r, struct rig *rig, const struct model *m, uint32_t tp_size, uint32_t tp_rank)
{
	const uint32_t heads = m->kv_heads > tp_size ? m->kv_heads / tp_size : 1;

	*r = (struct rank){.rig = rig};
	r->g = (struct tn_geometry){.layers = LAYERS, .page_tokens = 8, .pages_per_block = PAGES, .page_order = m->page_order, .nplanes = 2,
				    .planes = {{TN_PLANE_K, heads, 64, 16}, {TN_PLANE_V, heads, 64, 16}}};
	assert_int_equal(tn_head_groups_of(&r->g, &(struct tn_rank_heads){tp_size, tp_rank, m->kv_heads}, 8, &r->h), 0);
	assert_int_equal(tn_head_group_geometry(&r->g, &r->h, &r->stored), 0);
	open_spaces(r);
	open_pool(r);
}

static void rank_close(struct rank *r)
{
	for (uint32_t i = 0; i < r->h.count; i++)
		assert_int_equal(tn_pool_destroy(r->pool[i]), 0);
	assert_int_equal(tn_memory_unregister(r->registered), 0);
	for (uint32_t i = 0; i < r->h.total; i++)
		tn_space_close(r->space[i]);
	rig_memory_free(r->rig, r->memory, r->bytes);
}

/* Two bytes at a time: each element of the model has a value of its own, whoever has its head. */
static uint16_t element(uint64_t prompt, uint32_t layer, uint32_t plane, uint32_t head, uint32_t token, uint32_t i)
{
	uint64_t x = prompt * 0x9e3779b97f4a7c15u + ((((uint64_t)layer * 2 + plane) * 64 + head) * 4096 + token) * 64 + i;

	x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
	return (uint16_t)(x >> 40);
}

/* Calls with each element of the rank's pages, in the order of a page. Return: whether every call returned true. */
static bool each_element(const struct rank *r, bool (*call)(uint16_t *at, uint16_t value), uint64_t prompt)
{
	const uint32_t heads = r->g.planes[0].heads, tokens = r->g.page_tokens;
	bool good = true;

	for (uint32_t n = 0; n < LAYERS * 2 * BLOCKS * PAGES; n++) {
		uint32_t layer = n / (2 * BLOCKS * PAGES), plane = n / (BLOCKS * PAGES) % 2, page = n % (BLOCKS * PAGES);
		uint16_t *at = (uint16_t *)(void *)(r->memory + tn_layout_offset(&r->layout, &r->g, layer, plane, page));

		for (uint32_t row = 0; row < heads * tokens; row++) {
			uint32_t head = r->g.page_order == TN_PAGE_HND ? row / tokens : row % heads;
			uint32_t token = page * tokens + (r->g.page_order == TN_PAGE_HND ? row % tokens : row / heads);

			for (uint32_t i = 0; i < 64; i++)
				good &= call(at++, element(prompt, layer, plane, r->h.first * r->h.heads + head, token, i));
		}
	}
	return good;
}

static bool set(uint16_t *at, uint16_t value)
{
	*at = value;
	return true;
}

static bool is(uint16_t *at, uint16_t value)
{
	return *at == value;
}

/* All pages of the rank, as those of its groups. */
static uint32_t pages_of(const struct rank *r, uint32_t *out)
{
	uint32_t pages[BLOCKS * PAGES];

	for (uint32_t i = 0; i < BLOCKS * PAGES; i++)
		pages[i] = i;
	return (uint32_t)tn_head_group_pages(&r->g, pages, BLOCKS * PAGES, out, 1024);
}

static struct tn_save *save_begin(struct rank *r, uint32_t group, uint64_t prompt, uint32_t layers)
{
	struct tn_key keys[BLOCKS];
	uint32_t pages[1024];
	struct tn_save *save;

	assert_int_equal(pages_of(r, pages), BLOCKS * r->stored.pages_per_block);
	rig_keys(prompt * 100, BLOCKS, keys);
	assert_int_equal(tn_save_begin(r->space[group], r->pool[group - r->h.first], keys, BLOCKS, pages, NULL, &save), 0);
	for (uint32_t layer = 0; layer < layers; layer++)
		assert_int_equal(tn_save_layer(save, layer, NULL, 0), 0);
	return save;
}

static struct tn_save_result save_end(struct tn_save *save)
{
	struct tn_save_result result = {.size = sizeof(result)};

	assert_int_equal(tn_save_commit(save), 0);
	assert_int_equal(tn_save_end(save, tn_test_deadline(), &result), 0);
	return result;
}

/* All groups of the rank at once. Return: blocks that are stored now or were, of all of its groups together. */
static uint32_t save(struct rank *r, uint64_t prompt)
{
	struct tn_save *saves[GROUPS_MAX];
	uint32_t n = 0;

	each_element(r, set, prompt);
	for (uint32_t i = 0; i < r->h.count; i++)
		saves[i] = save_begin(r, r->h.first + i, prompt, LAYERS);
	for (uint32_t i = 0; i < r->h.count; i++) {
		struct tn_save_result result = save_end(saves[i]);

		n += result.stored + result.existing;
	}
	return n;
}

static int load_group(struct rank *r, uint32_t group, uint64_t prompt)
{
	struct tn_key keys[BLOCKS];
	uint32_t pages[1024];
	struct tn_load *load;
	int good;

	pages_of(r, pages);
	rig_keys(prompt * 100, BLOCKS, keys);
	assert_int_equal(tn_load_begin(r->space[group], r->pool[group - r->h.first], keys, BLOCKS, pages, NULL, &load), 0);
	good = tn_test_ended(tn_load_wait(load, LAYERS - 1, tn_test_deadline()));
	assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
	return good;
}

/* Return: blocks that every group of the rank has; if these are all, their bytes were compared. */
static int load(struct rank *r, uint64_t prompt)
{
	int good = BLOCKS;

	memset(r->memory, RIG_POISON, r->bytes);
	for (uint32_t i = 0; i < r->h.count; i++) {
		int one = load_group(r, r->h.first + i, prompt);

		good = one < good ? one : good;
	}
	if (good == BLOCKS)
		assert_true(each_element(r, is, prompt));
	return good;
}

/* Blocks that all groups of the model have. */
static int match(struct rank *r, uint64_t prompt)
{
	struct tn_match m = {.size = sizeof(m)};
	struct tn_key keys[BLOCKS];

	rig_keys(prompt * 100, BLOCKS, keys);
	return tn_match_all(r->space, r->h.total, keys, BLOCKS, NULL, &m, 0);
}

static void up(struct rig *r)
{
	rig_init(r, 64u << 20, 4u << 20, 64);
	r->o.spaces = 0;
	rig_must_open(r);
}

/* ---- sizes --------------------------------------------------------------------------------------------------------- */

static void save_at(struct rig *r, const struct model *m, uint32_t tp, uint64_t prompt)
{
	struct rank rank;

	for (uint32_t i = 0; i < tp; i++) {
		rank_open(&rank, r, m, tp, i);
		assert_int_equal(save(&rank, prompt), rank.h.count * BLOCKS);
		assert_int_equal(match(&rank, prompt), rank.h.first + rank.h.count == rank.h.total ? BLOCKS : 0);
		rank_close(&rank);
	}
}

static void load_at(struct rig *r, const struct model *m, uint32_t tp, uint64_t prompt)
{
	struct rank rank;

	for (uint32_t i = 0; i < tp; i++) {
		rank_open(&rank, r, m, tp, i);
		assert_int_equal(match(&rank, prompt), BLOCKS);
		assert_int_equal(load(&rank, prompt), BLOCKS);
		rank_close(&rank);
	}
}

static void ranks_of_each_size_read_what_any_size_saved(void **state)
{
	static const struct model models[] = {{8, TN_PAGE_HND}, {8, TN_PAGE_NHD}, {2, TN_PAGE_HND}, {16, TN_PAGE_HND}, {16, TN_PAGE_NHD}, {1, TN_PAGE_HND}};
	struct rig r;

	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
		up(&r);
		for (uint32_t from = 1; from <= 4; from *= 2)
			save_at(&r, &models[i], from, from);
		rig_reopen(&r); /* from the disk */
		for (uint32_t from = 1; from <= 4; from *= 2)
			for (uint32_t to = 1; to <= 8; to *= 2)
				load_at(&r, &models[i], to, from);
		rig_tear_down(&r);
	}
}

/* Neither another number of groups nor a rank's own share is a group's. */
static void what_is_not_stored_by_the_same_groups_is_not_found(void **state)
{
	const struct model m = {8, TN_PAGE_HND};
	struct tn_space *other;
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_key key;
	struct rank rank;
	struct rig r;

	up(&r);
	rank_open(&rank, &r, &m, 8, 3);
	assert_int_equal(save(&rank, 1), BLOCKS);
	rig_keys(100, 1, &key);
	tn_identity_init(&id);
	id.model = "canonical";
	for (uint32_t i = 0; i < 4; i++) {
		struct tn_match found = {.size = sizeof(found)};

		tn_shard_init(&shard);
		shard.tp_size = 8, shard.tp_rank = i < 3 ? 3 : 2;
		shard.head_group = i == 1 ? 4 : 3;
		shard.head_groups = i == 0 ? 0 : i == 2 ? 16 : 8;
		assert_int_equal(tn_space_open(r.cache, &id, &shard, &rank.stored, NULL, &other), 0);
		/* The last one is the same space, of a rank that says another number. */
		assert_int_equal(tn_match(other, &key, 1, NULL, &found, 0), i == 3);
		tn_space_close(other);
	}
	shard.head_group = shard.head_groups;
	assert_int_equal(tn_space_open(r.cache, &id, &shard, &rank.stored, NULL, &other), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "head_group 8 of head_groups 8"));
	rank_close(&rank);
	rig_tear_down(&r);
}

/* ---- one share alone -------------------------------------------------------------------------------------------------- */

/* Where the object of a layer of a block of one head lies in the store's file. */
static void damage(struct rig *r, uint64_t prompt, uint32_t head, uint32_t layer, uint32_t block)
{
	uint16_t begin[64];
	char path[300];
	struct stat st;
	unsigned char *file, *at;
	int fd;

	for (uint32_t i = 0; i < 64; i++)
		begin[i] = element(prompt, layer, 0, head, block * PAGES * 8, i);
	rig_store_file(r, path, sizeof(path));
	fd = open(path, O_RDWR);
	assert_true(fd >= 0 && fstat(fd, &st) == 0);
	file = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(file != MAP_FAILED);
	at = memmem(file, (size_t)st.st_size, begin, sizeof(begin));
	assert_non_null(at);
	*at ^= 1;
	assert_int_equal(munmap(file, (size_t)st.st_size), 0);
	close(fd);
}

static void a_share_is_verified_alone(void **state)
{
	const struct model m = {8, TN_PAGE_HND};
	struct rank rank;
	struct rig r;

	up(&r);
	save_at(&r, &m, 1, 1);
	assert_int_equal(rig_close(&r), 0);
	damage(&r, 1, 5, 1, 2);
	rig_must_open(&r);
	rank_open(&rank, &r, &m, 1, 0);
	assert_int_equal(match(&rank, 1), BLOCKS); /* nobody has read it */
	for (uint32_t group = 0; group < 8; group++)
		assert_int_equal(load_group(&rank, group, 1), group == 5 ? 2 : BLOCKS);
	assert_int_equal(match(&rank, 1), 2);
	rank_close(&rank);
	/* A rank of TP 2 that does not have the head reads all of its share. */
	rank_open(&rank, &r, &m, 2, 0);
	assert_int_equal(load(&rank, 1), BLOCKS);
	rank_close(&rank);
	rig_tear_down(&r);
}

/* ---- a rank that dies between shares ---------------------------------------------------------------------------------- */

static void socket_of(const char *dir, char *path, size_t bytes)
{
	snprintf(path, bytes, "%s/socket", dir);
}

/* Another process, rank 1 of TP 2: it saves its first two shares, begins the third, says so, and waits for its death. */
static int die_between_shares(const char *dir)
{
	const struct model m = {8, TN_PAGE_HND};
	struct tn_attach_opts ao;
	struct rank rank;
	char path[300];
	struct rig r;

	alarm(LIFE_S);
	rig_init(&r, 0, 0, 64);
	assert_int_equal(rmdir(r.dir), 0);
	r.o.attached = true;
	socket_of(dir, path, sizeof(path));
	tn_attach_opts_init(&ao);
	ao.deadline_ns = tn_test_deadline();
	assert_int_equal(tn_cache_attach(path, &ao, &r.cache), 0);
	rank_open(&rank, &r, &m, 2, 1);
	each_element(&rank, set, 1);
	for (uint32_t group = 4; group < 6; group++)
		assert_int_equal(save_end(save_begin(&rank, group, 1, LAYERS)).stored, BLOCKS);
	save_begin(&rank, 6, 1, LAYERS - 1);
	assert_int_equal(write(STDOUT_FILENO, "!", 1), 1);
	pause();
	return 1;
}

static pid_t start(const char *dir, int *out)
{
	int fd[2];
	pid_t pid;

	assert_int_equal(pipe2(fd, O_CLOEXEC), 0);
	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(fd[1], STDOUT_FILENO);
		execl("/proc/self/exe", "cache-heads-test", dir, (char *)NULL);
		_exit(127);
	}
	close(fd[1]);
	*out = fd[0];
	return pid;
}

static void a_block_is_not_found_while_a_rank_died_between_its_shares(void **state)
{
	const struct model m = {8, TN_PAGE_HND};
	struct rank whole, half;
	char path[300], byte;
	struct rig r;
	pid_t pid;
	int fd;

	up(&r);
	socket_of(r.dir, path, sizeof(path));
	assert_int_equal(tn_cache_serve(r.cache, path, NULL), 0);
	rank_open(&half, &r, &m, 2, 0);
	assert_int_equal(save(&half, 1), 4 * BLOCKS);
	pid = start(r.dir, &fd);
	assert_int_equal(read(fd, &byte, 1), 1);
	close(fd);
	assert_int_equal(match(&half, 1), 0);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(match(&half, 1), 0);
	/* What is stored of it is: a rank of TP 8 reads group 5, and none group 6 or 7. */
	rank_open(&whole, &r, &m, 1, 0);
	for (uint32_t group = 0; group < 8; group++)
		assert_int_equal(load_group(&whole, group, 1), group < 6 ? BLOCKS : 0);
	/* Another size completes it. */
	assert_int_equal(save(&whole, 1), 8 * BLOCKS);
	assert_int_equal(match(&whole, 1), BLOCKS);
	assert_int_equal(load(&whole, 1), BLOCKS);
	rank_close(&whole);
	rank_close(&half);
	for (uint32_t tp = 1; tp <= 8; tp *= 2)
		load_at(&r, &m, tp, 1);
	rig_tear_down(&r);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_of_each_size_read_what_any_size_saved),
		cmocka_unit_test(what_is_not_stored_by_the_same_groups_is_not_found),
		RIG_STORE_TEST(a_share_is_verified_alone),
		cmocka_unit_test(a_block_is_not_found_while_a_rank_died_between_its_shares),
	};

	if (argc == 2) {
		setenv("CMOCKA_TEST_ABORT", "1", 1);
		return die_between_shares(argv[1]);
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
