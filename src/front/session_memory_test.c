/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of processes that attach: which is taken, and what becomes of the owner and of others when its pages go away. */
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/statfs.h>

#include "base/error.h"
#include "enginepool.h"
#include "session_rig.h"

/* A space over memory of a file, in place of the rig's own. */
struct shared {
	struct rig_space s;
	unsigned char *memory;
	uint64_t bytes;
	int fd; /* -1: closed, the memory is found by its name */
};

static const char *name(void)
{
	static char text[64];

	snprintf(text, sizeof(text), "/tenuto-test-%d", (int)getpid());
	return text;
}

static int file_of(const char *kind)
{
	int fd;

	if (strcmp(kind, "memfd") == 0)
		return memfd_create("test", MFD_CLOEXEC);
	fd = shm_open(name(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	if (fd >= 0 && strcmp(kind, "unlinked") == 0)
		assert_int_equal(shm_unlink(name()), 0);
	return fd;
}

/* A pool of the rig's space in a file of that kind. */
static void share(struct rig *r, const char *kind, struct shared *m)
{
	struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .npages = RIG_POOL_PAGES};
	uint64_t bytes;
	uint32_t count;

	memset(m, 0, sizeof(*m));
	m->s = *r->s;
	assert_int_equal(tn_layout_regions(&m->s.g, &shape, &count, &bytes), 0);
	m->bytes = bytes * count;
	m->fd = file_of(kind);
	assert_true(m->fd >= 0);
	assert_int_equal(ftruncate(m->fd, (off_t)m->bytes), 0);
	m->memory = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	assert_ptr_not_equal(m->memory, MAP_FAILED);
	if (strcmp(kind, "named") == 0) {
		assert_int_equal(close(m->fd), 0);
		m->fd = -1;
	}
	for (uint32_t i = 0; i < count; i++)
		m->s.bases[i] = m->memory + i * bytes;
	assert_int_equal(enginepool_create(r->cache, &m->s.g, &shape, m->s.bases, &m->s.pool), 0);
}

static void give_back(struct shared *m)
{
	assert_int_equal(enginepool_destroy(m->s.pool), 0);
	assert_int_equal(munmap(m->memory, m->bytes), 0);
	if (m->fd >= 0)
		close(m->fd);
	shm_unlink(name());
}

static void memory_of_any_shared_file_serves(void **state)
{
	static const char *const kinds[] = {"memfd", "named", "unlinked"};
	struct rig r, mine;
	struct shared m;

	set_up(&r);
	attach(r.dir, &mine);
	for (uint32_t i = 0; i < 3; i++) {
		share(&mine, kinds[i], &m);
		assert_int_equal(rig_load(&m.s, 1, BLOCKS), BLOCKS);
		assert_int_equal(rig_save(&m.s, 1000 * (1 + i), BLOCKS, 0).stored, BLOCKS);
		assert_int_equal(rig_load(r.s, 1000 * (1 + i), BLOCKS), BLOCKS);
		give_back(&m);
	}
	detach(&mine);
	rig_tear_down(&r);
}

static int shared_range(int fd, uint64_t file_bytes, struct tn_cache *cache)
{
	struct tn_memory_range range = {.bytes = 1u << 20};
	struct tn_memory *memory;
	struct tn_memory_desc d;
	int rc;

	assert_int_equal(ftruncate(fd, (off_t)file_bytes), 0);
	range.address = mmap(NULL, range.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	tn_memory_desc_init(&d);
	d.nranges = 1;
	d.ranges = &range;
	rc = tn_memory_register(cache, &d, &memory);
	munmap(range.address, range.bytes);
	close(fd);
	return rc;
}

static void files_that_are_no_memory_are_refused(void **state)
{
	struct rig r, mine;
	struct statfs fs;
	char path[300];
	int fd;

	set_up(&r);
	attach(r.dir, &mine);
	snprintf(path, sizeof(path), "%s/bytes", r.dir);
	fd = open(path, O_CREAT | O_RDWR, 0600);
	assert_int_equal(fstatfs(fd, &fs), 0);
	if (fs.f_type != TMPFS_MAGIC) { /* in a machine without a disk all files are memory */
		assert_int_equal(shared_range(fd, 1 << 20, mine.cache), -EINVAL);
		assert_non_null(strstr(tn_error_last()->text, "no memory"));
	} else {
		close(fd);
	}
	unlink(path);
	assert_int_equal(shared_range(memfd_create("small", MFD_CLOEXEC), 4096, mine.cache), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "of a file with 4096"));
	assert_int_equal(rig_load(mine.s, 1, BLOCKS), BLOCKS);
	detach(&mine);
	rig_tear_down(&r);
}

/* A layout that goes beyond its memory is refused, also by an owner whose client's front has not looked. */
static void memory_smaller_than_its_layout_is_refused(void **state)
{
	struct tn_memory_range range = {.bytes = 1u << 20};
	struct tn_wire_pool w = {.nbases = RIG_LAYERS * 2, .npages = RIG_POOL_PAGES};
	uint64_t base[RIG_LAYERS * 2] = {0};
	struct tn_pool_layout layout = {.npages = RIG_POOL_PAGES, .base = base};
	struct tn_memory_desc d;
	struct tn_memory *memory;
	struct tn_pool *pool;
	struct rig r, mine;
	uint32_t number;
	const struct iovec in[] = {{&w, sizeof(w)}, {base, sizeof(base)}}, out = {&number, sizeof(number)};

	set_up(&r);
	attach(r.dir, &mine);
	assert_int_equal(tn_memory_alloc(range.bytes, NULL, &range.address), 0);
	tn_memory_desc_init(&d);
	d.nranges = 1;
	d.ranges = &range;
	assert_int_equal(tn_memory_register(mine.cache, &d, &memory), 0);
	for (uint32_t i = 0; i < RIG_LAYERS * 2; i++)
		base[i] = i * 4096;
	for (uint32_t i = 0; i < 2; i++)
		w.stride[i] = layout.stride[i] = RIG_LAYERS * 2 * 4096;
	assert_int_equal(tn_pool_create(memory, &mine.s->g, &layout, &pool), -EINVAL);
	assert_true(strlen(tn_error_last()->text) > 20);
	w.memory = memory->number;
	assert_true(tn_geometry_store(&mine.s->g, w.geometry, sizeof(w.geometry)) > 0);
	assert_int_equal(tn_attached_call(mine.cache, TN_WIRE_POOL_CREATE, in, 2, &out, 1), -EINVAL);
	assert_true(strlen(tn_error_last()->text) > 20);
	assert_int_equal(tn_memory_unregister(memory), 0);
	assert_int_equal(tn_memory_free(range.address), 0);
	assert_int_equal(rig_load(mine.s, 1, BLOCKS), BLOCKS);
	detach(&mine);
	rig_tear_down(&r);
}

/* An empty, read-only directory in its place. 77: that takes more rights than the test has. */
static int do_without_dev_shm(const char *dir)
{
	struct rig r;

	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", "/dev/shm", "tmpfs", MS_RDONLY, "size=4k"))
		return TN_TEST_SKIP;
	assert_true(shm_open(name(), O_CREAT | O_RDWR, 0600) < 0);
	attach(dir, &r);
	assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(rig_save(r.s, 1000, BLOCKS, 0).stored, BLOCKS);
	detach(&r);
	return 0;
}

static void a_machine_without_dev_shm_will_do(void **state)
{
	struct rig r;
	int rc;

	set_up(&r);
	rc = end_of(start("do_without_dev_shm", &r));
	rig_tear_down(&r);
	if (rc == TN_TEST_SKIP)
		tn_test_skip("a mount over /dev/shm takes root");
	assert_int_equal(rc, 0);
}

/* ---- how much the owner maps ------------------------------------------------------------------------------------- */

#define MIB (UINT64_C(1) << 20)
#define SHARE (8 * MIB)

static int sparse_file(uint64_t bytes)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	return fd;
}

/* So many ranges of so many bytes, one behind the other, as a front sends them that maps nothing itself. The owner's answer. */
static int send_ranges(struct tn_cache *cache, int fd, uint32_t n, uint64_t bytes, struct tn_wire_registered *answer)
{
	struct tn_wire_memory w = {.magic = TN_WIRE_MAGIC, .nranges = n};
	int fds[TN_WIRE_RANGES_MAX];

	for (uint32_t i = 0; i < n; i++) {
		fds[i] = fd;
		w.range[i].offset = i * bytes;
		w.range[i].bytes = bytes;
	}
	assert_int_equal(tn_attached_memory(cache, &w, fds, answer), 0);
	return answer->status;
}

static void is_refused(struct tn_cache *cache, int fd, uint32_t n, uint64_t bytes, const char *says)
{
	struct tn_wire_registered answer;

	assert_int_equal(send_ranges(cache, fd, n, bytes, &answer), -ENOSPC);
	if (!strstr(answer.text, says))
		fail_msg("\"%s\" does not say \"%s\"", answer.text, says);
}

static void forget(struct tn_cache *cache, uint32_t number)
{
	const struct tn_wire_about about = {.number = number};
	const struct iovec in = TN_PART(&about, sizeof(about));

	assert_int_equal(tn_attached_call(cache, TN_WIRE_MEMORY_UNREGISTER, &in, 1, NULL, 0), 0);
}

/* Serves with a rule of so many bytes, and attaches. */
static void attach_for(struct rig *r, uint64_t max_memory_bytes, struct tn_cache **cache)
{
	struct tn_serve_rule rule;
	struct tn_serve_opts o;
	char path[PATH];

	tn_serve_rule_init(&rule);
	rule.uid = geteuid();
	rule.max_memory_bytes = max_memory_bytes;
	tn_serve_opts_init(&o);
	o.rules = &rule;
	o.nrules = 1;
	rig_set_up(r, 64u << 20, 0, 64);
	socket_path(r, path);
	assert_int_equal(tn_cache_serve(r->cache, path, &o), 0);
	assert_int_equal(tn_cache_attach(path, patient(), cache), 0);
}

static void memory_beyond_a_processs_share_is_refused(void **state)
{
	struct tn_wire_registered first, answer;
	int fd = sparse_file(2 * SHARE);
	struct tn_cache *cache;
	struct rig r;

	attach_for(&r, SHARE, &cache);
	is_refused(cache, fd, 1, SHARE + 1, "has 0, of at most 8388608");
	assert_int_equal(send_ranges(cache, fd, 2, SHARE / 2, &first), 0);
	is_refused(cache, fd, 1, 1, "has 8388608, of at most 8388608; unregister some, or have the cache's owner raise max_memory_bytes");
	for (uint32_t i = 0; i < 3; i++) {
		forget(cache, first.number);
		assert_int_equal(send_ranges(cache, fd, 5, SHARE / 2, &answer), -ENOSPC); /* what was mapped of it is not any more */
		assert_int_equal(send_ranges(cache, fd, 1, SHARE, &first), 0);
	}
	assert_int_equal(tn_cache_close(cache), 0);
	rig_tear_down(&r);
	close(fd);
}

static void without_a_rule_the_share_is_the_machines_memory(void **state)
{
	int fd = sparse_file(UINT64_C(1) << 45);
	struct tn_wire_registered answer;
	struct tn_cache *cache;
	struct rig r;

	attach_for(&r, 0, &cache);
	is_refused(cache, fd, 1, UINT64_C(1) << 45, "max_memory_bytes");
	assert_int_equal(send_ranges(cache, fd, 1, 64 * MIB, &answer), 0);
	assert_int_equal(tn_cache_close(cache), 0);
	rig_tear_down(&r);
	close(fd);
}

/* Whatever the rule says. */
static void addresses_and_mappings_are_left_for_the_owner(void **state)
{
	const uint64_t most = UINT64_C(1) << 46, file = INT64_MAX / 4096 * 4096;
	struct tn_wire_registered answer;
	struct tn_cache *cache;
	int fd = sparse_file(file);
	struct rig r;

	attach_for(&r, UINT64_MAX, &cache);
	is_refused(cache, fd, 1, most + 1, "maps at most 70368744177664 of all");
	is_refused(cache, fd, 1, file, "maps at most");
	assert_int_equal(send_ranges(cache, fd, 1, MIB, &answer), 0);
	is_refused(cache, fd, 1, most, "maps at most");
	forget(cache, answer.number);
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(send_ranges(cache, fd, TN_WIRE_RANGES_MAX, 4096, &answer), 0);
	is_refused(cache, fd, 1, 4096, "has 1024 ranges");
	forget(cache, answer.number);
	assert_int_equal(send_ranges(cache, fd, 1, 4096, &answer), 0);
	assert_int_equal(tn_cache_close(cache), 0);
	rig_tear_down(&r);
	close(fd);
}

/* ---- pools ------------------------------------------------------------------------------------------------------- */

#define PLANES 8000u

/* A pool of one page of one byte per plane, from that offset of the memory on, as a front sends it that compares nothing itself. */
static void send_pool(struct tn_cache *cache, uint32_t memory, uint64_t offset, struct tn_wire_pool_told *told)
{
	struct tn_geometry g = {.layers = PLANES / TN_PLANES_MAX, .page_tokens = 1, .pages_per_block = 1, .nplanes = TN_PLANES_MAX};
	struct tn_wire_pool w = {.memory = memory, .nbases = PLANES, .npages = 1};
	const struct iovec out = TN_PART(told, sizeof(*told));
	uint64_t base[PLANES];
	const struct iovec in[] = {TN_PART(&w, sizeof(w)), TN_PART(base, sizeof(base))};

	for (uint32_t p = 0; p < TN_PLANES_MAX; p++) {
		g.planes[p] = (struct tn_plane){TN_PLANE_K, 1, 1, 8};
		w.stride[p] = 1;
	}
	for (uint32_t i = 0; i < PLANES; i++)
		base[i] = offset + i;
	assert_true(tn_geometry_store(&g, w.geometry, sizeof(w.geometry)) > 0);
	assert_int_equal(tn_attached_call(cache, TN_WIRE_POOL_CREATE, in, 2, &out, 1), 0);
}

/* Pools of the owner's memories of other processes; none has claims. */
static uint32_t pools_without_claims(struct tn_cache *owner)
{
	struct tn_list *at, *next;
	uint32_t n = 0, claims = 0;

	pthread_mutex_lock(&owner->lock);
	tn_list_for_each_safe(at, next, &owner->memories) {
		const struct tn_memory *m = tn_container_of(at, struct tn_memory, link);

		if (m->session == owner->own)
			continue;
		claims += m->nclaims;
		n += m->npools;
	}
	pthread_mutex_unlock(&owner->lock);
	assert_int_equal(claims, 0);
	return n;
}

/* To compare planes takes the product of their numbers: for each two layouts 64 million steps here, under the lock that tn_space_open takes. */
static void the_owner_compares_no_layouts_of_another_process(void **state)
{
	struct tn_wire_pool_told told[TN_MEMORY_LAYOUTS_MAX + 1];
	const uint32_t n = TN_MEMORY_LAYOUTS_MAX + 1;
	struct tn_wire_registered memory;
	int fd = sparse_file(MIB);
	struct tn_cache *cache;
	struct rig r;

	attach_for(&r, MIB, &cache);
	assert_int_equal(send_ranges(cache, fd, 1, MIB, &memory), 0);
	for (uint32_t i = 0; i < n; i++) {
		send_pool(cache, memory.number, i * PLANES, &told[i]);
		assert_int_equal(pools_without_claims(r.cache), i + 1);
	}
	for (uint32_t i = 0; i < n; i++) {
		const struct tn_wire_about about = {.number = told[i].number, .pin = told[i].life};
		const struct iovec in = TN_PART(&about, sizeof(about));

		assert_int_equal(tn_attached_call(cache, TN_WIRE_POOL_DESTROY, &in, 1, NULL, 0), 0);
	}
	assert_int_equal(pools_without_claims(r.cache), 0);
	assert_int_equal(tn_cache_close(cache), 0);
	rig_tear_down(&r);
	close(fd);
}

/* ---- bytes that a process says it has copied --------------------------------------------------------------------- */

static uint64_t stat_of(struct rig *r, const char *stat)
{
	uint64_t value = 0;

	assert_int_equal(tn_cache_stat(r->cache, stat, &value), 0);
	return value;
}

static void say(const struct rig *r, uint64_t bytes)
{
	__atomic_store_n(&tn_region_front(&r->cache->region)->staged_bytes, bytes, __ATOMIC_RELAXED);
}

/* What it says counts as far as its operations were about memory that is staged, and never falls. */
static void a_process_that_lies_of_staged_bytes_falsifies_nothing(void **state)
{
	struct rig r, mine;
	struct held before;
	char path[PATH];
	uint64_t all;

	set_up(&r);
	before = held_by(&r);
	attach(r.dir, &mine);
	assert_int_equal(rig_load(mine.s, 1, BLOCKS), BLOCKS); /* of pages that the owner maps */
	say(&mine, UINT64_MAX);
	assert_int_equal(stat_of(&r, "staged_bytes"), 0);
	detach(&mine);
	all_is_given_back(&r, &before);
	assert_int_equal(stat_of(&r, "staged_bytes"), 0);
	init_in(r.dir, &mine);
	mine.o.attached = mine.o.staged = true;
	socket_path(&mine, path);
	assert_int_equal(tn_cache_attach(path, patient(), &mine.cache), 0);
	assert_int_equal(rig_space_open(&mine, &(struct rig_space_opts){0}, mine.s), 0);
	assert_int_equal(rig_load(mine.s, 1, BLOCKS), BLOCKS);
	all = stat_of(&r, "staged_bytes");
	assert_true(all > 0);
	say(&mine, 0);
	assert_int_equal(stat_of(&r, "staged_bytes"), all);
	say(&mine, UINT64_MAX);
	assert_int_equal(stat_of(&r, "staged_bytes"), all);
	detach(&mine);
	all_is_given_back(&r, &before);
	assert_int_equal(stat_of(&r, "staged_bytes"), all);
	rig_tear_down(&r);
}

/* ---- pages that go away ------------------------------------------------------------------------------------------ */

#define ROUNDS 12u

static void serve_blocks(struct rig *r)
{
	char path[PATH];

	socket_path(r, path);
	assert_int_equal(tn_cache_serve(r->cache, path, NULL), 0);
	assert_int_equal(rig_save(r->s, 1, BLOCKS, 0).stored, BLOCKS);
}

/* Without a look at the pages, which are gone. */
static int begin_as_it_is(struct rig_space *s, uint64_t first, struct tn_save **save)
{
	struct tn_key keys[BLOCKS];
	uint32_t pages[BLOCKS * RIG_PAGES];

	rig_keys(first, BLOCKS, keys);
	rig_pages(s, 0, BLOCKS, pages);
	return tn_save_begin(s->space, s->pool, keys, BLOCKS, pages, NULL, save);
}

static void says_that_pages_are_gone(int rc)
{
	assert_int_equal(rc, -EFAULT);
	assert_non_null(strstr(tn_error_last()->text, "pages of the memory are gone"));
}

/* All pages are gone. A load finds nothing; then nothing is tried again, and each call says so. */
static void all_is_refused(struct rig_space *s, uint64_t first)
{
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_key key = rig_key(1);
	uint32_t pages[RIG_PAGES];
	struct tn_load *load;
	struct tn_save *save;
	int rc;

	rig_pages(s, 0, 1, pages);
	rc = tn_load_begin(s->space, s->pool, &key, 1, pages, NULL, &load);
	if (rc == 0) { /* no operation before was refused */
		assert_int_equal(rig_load_wait(s, load, RIG_LAYERS - 1), 0);
		rig_load_end(s, load);
	} else {
		says_that_pages_are_gone(rc);
	}
	rc = begin_as_it_is(s, first, &save);
	if (rc == 0) { /* nor was the load: this one is */
		rig_save_give(s, save);
		rc = tn_save_end(save, tn_test_deadline(), &res);
		assert_int_equal(res.failed, BLOCKS);
		assert_int_equal(res.error, -EFAULT);
	}
	says_that_pages_are_gone(rc);
	says_that_pages_are_gone(begin_as_it_is(s, first, &save));
	says_that_pages_are_gone(tn_load_begin(s->space, s->pool, &key, 1, pages, NULL, &load));
}

/* Truncates, or punches, while its loads and saves are under way; then tries once more, and begins anew with other memory. */
static int lose_memory(const char *dir)
{
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_rng rng;
	struct shared m;
	struct rig r;

	attach(dir, &r);
	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t i = 0; i < (tn_test_soak() ? 300u : ROUNDS); i++) {
		struct tn_load *load;
		struct tn_save *save;
		int rc;

		share(&r, "memfd", &m);
		load = rig_load_begin(&m.s, 1, BLOCKS, RIG_POOL_PAGES / 2, NULL);
		save = rig_save_begin(&m.s, 5000 + i * BLOCKS, BLOCKS, 0, NULL);
		rig_save_give(&m.s, save);
		for (uint64_t until = tn_test_now() + tn_rng_below(&rng, 400) * RIG_US; tn_test_now() < until;)
			;
		if (i % 3 == 2)
			fallocate(m.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)m.bytes);
		else
			assert_int_equal(ftruncate(m.fd, i % 3 ? 0 : (off_t)m.bytes / 2), 0);
		assert_true(rig_load_wait(&m.s, load, RIG_LAYERS - 1) >= 0);
		rig_load_end(&m.s, load);
		rc = tn_save_end(save, tn_test_deadline(), &res);
		assert_true(rc == 0 || rc == -EFAULT);
		assert_int_equal(res.stored + res.existing + res.host_only + res.rejected + res.failed, BLOCKS);
		if (i % 3 == 1)
			all_is_refused(&m.s, 900000 + i * BLOCKS);
		give_back(&m);
	}
	assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS); /* of memory that is there */
	detach(&r);
	return 0;
}

/* The owner tries once; after that neither its device nor its threads have anything to do with such memory. */
static void what_is_lost_is_refused_before_any_work(void **state)
{
	struct tn_key key = rig_key(1);
	uint32_t pages[RIG_PAGES];
	uint64_t bytes_read, verified;
	struct tn_load *load;
	struct rig r, mine;
	struct shared m;

	rig_set_up(&r, 64u << 20, 0, 64);
	serve_blocks(&r);
	attach(r.dir, &mine);
	share(&mine, "memfd", &m);
	assert_int_equal(ftruncate(m.fd, 0), 0);
	load = rig_load_begin(&m.s, 1, BLOCKS, 0, NULL);
	assert_int_equal(rig_load_wait(&m.s, load, RIG_LAYERS - 1), 0);
	rig_load_end(&m.s, load);
	bytes_read = stat_of(&r, "bytes_read");
	verified = stat_of(&r, "verified_objects");
	load = rig_load_begin(&m.s, 1, BLOCKS, 0, NULL); /* refused at the command */
	assert_int_equal(rig_load_wait(&m.s, load, RIG_LAYERS - 1), 0);
	rig_load_end(&m.s, load);
	rig_pages(&m.s, 0, 1, pages);
	says_that_pages_are_gone(tn_load_begin(m.s.space, m.s.pool, &key, 1, pages, NULL, &load));
	assert_int_equal(stat_of(&r, "bytes_read"), bytes_read);
	assert_int_equal(stat_of(&r, "verified_objects"), verified);
	give_back(&m);
	share(&mine, "memfd", &m); /* other memory */
	assert_int_equal(rig_load(&m.s, 1, BLOCKS), BLOCKS);
	give_back(&m);
	detach(&mine);
	rig_tear_down(&r);
}

/* The owner's threads meet pages that are gone: theirs is that operation alone. */
static void lose(uint32_t executors, uint64_t host_bytes)
{
	struct tn_device_stats d;
	struct tn_stats stats;
	struct rig r;
	pid_t pid;
	int rounds = 0, status;

	rig_executors = executors;
	rig_set_up(&r, 64u << 20, host_bytes, 64);
	rig_executors = 0;
	serve_blocks(&r);
	pid = start("lose_memory", &r);
	while (waitpid(pid, &status, WNOHANG) == 0) {
		assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS); /* checks the bytes */
		rounds++;
	}
	assert_int_equal(status, 0);
	assert_true(rounds > 0);
	stats = rig_stats(&r);
	d = rig_device(&r, 0);
	assert_int_equal(d.health, TN_HEALTHY);
	assert_int_equal(d.read_errors + d.write_errors, 0);
	assert_int_equal(stats.io_errors, 0);
	assert_int_equal(stats.corrupt_objects, 0);
	rig_tear_down(&r);
}

static void memory_that_goes_away_costs_its_owner_alone(void **state)
{
	lose(0, 0);
	lose(0, 8u << 20);
	if (rig_has_executors())
		lose(2, 0);
}

static const struct {
	const char *name;
	int (*run)(const char *dir);
} bodies[] = {
	{"lose_memory", lose_memory},
	{"do_without_dev_shm", do_without_dev_shm},
};

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_of_any_shared_file_serves),
		cmocka_unit_test(files_that_are_no_memory_are_refused),
		cmocka_unit_test(memory_smaller_than_its_layout_is_refused),
		cmocka_unit_test(a_machine_without_dev_shm_will_do),
		cmocka_unit_test(memory_beyond_a_processs_share_is_refused),
		cmocka_unit_test(without_a_rule_the_share_is_the_machines_memory),
		cmocka_unit_test(addresses_and_mappings_are_left_for_the_owner),
		cmocka_unit_test(the_owner_compares_no_layouts_of_another_process),
		cmocka_unit_test(a_process_that_lies_of_staged_bytes_falsifies_nothing),
		cmocka_unit_test(what_is_lost_is_refused_before_any_work),
		cmocka_unit_test(memory_that_goes_away_costs_its_owner_alone),
	};

	for (size_t i = 0; argc == 3 && i < sizeof(bodies) / sizeof(bodies[0]); i++)
		if (strcmp(argv[1], bodies[i].name) == 0)
			return bodies[i].run(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
