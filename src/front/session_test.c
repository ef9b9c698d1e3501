/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that attach to the cache of another one: what they share, and who is refused. How they end is session_ends_test.c. */
#include "session_rig.h"
#include "tn_test_seccomp.h"

/* ---- what they share ------------------------------------------------------------------------------------------ */

static int load_and_save(const char *dir)
{
	struct rig r;
	uint64_t value;

	attach(dir, &r);
	assert_int_equal(rig_match(r.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS); /* checks the bytes */
	assert_int_equal(rig_save(r.s, 1 + BLOCKS, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_flush(&r), 0);
	assert_int_equal(tn_cache_stat(r.cache, "saved_blocks", &value), 0);
	assert_int_equal(value, 2 * BLOCKS);
	detach(&r);
	return 0;
}

static void what_one_process_saves_another_one_loads(void **state)
{
	struct rig r;

	set_up(&r);
	assert_int_equal(end_of(start("load_and_save", &r)), 0);
	assert_int_equal(rig_load(r.s, 1 + BLOCKS, BLOCKS), BLOCKS);
	rig_tear_down(&r);
}

static int wait_on_event(const char *dir)
{
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_event *event;
	struct tn_key keys[4];
	uint32_t pages[4 * RIG_PAGES];
	struct tn_save *save;
	struct rig r;

	attach(dir, &r);
	rig_keys(100, 4, keys);
	rig_pages(r.s, 0, 4, pages);
	rig_fill_blocks(r.s, 100, 4, 0);
	assert_int_equal(tn_event_create(r.cache, &event), 0);
	assert_int_equal(tn_save_begin(r.s->space, r.s->pool, keys, 4, pages, NULL, &save), 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_save_layer(save, l, event, 1 + l), 0);
	assert_int_equal(tn_save_commit(save), 0);
	assert_int_equal(tn_save_end(save, tn_test_now() + 20 * RIG_MS, &res), -ETIMEDOUT);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_event_raise(event, 1 + l), 0);
	assert_int_equal(tn_save_end(save, tn_test_deadline(), &res), 0);
	assert_int_equal(res.stored, 4);
	tn_event_destroy(event);
	detach(&r);
	return 0;
}

static void a_save_waits_for_events_of_its_own_process(void **state)
{
	struct rig r;

	set_up(&r);
	assert_int_equal(end_of(start("wait_on_event", &r)), 0);
	assert_int_equal(rig_load(r.s, 100, 4), 4);
	rig_tear_down(&r);
}

/* ---- who is refused ------------------------------------------------------------------------------------------------ */

static void fails(int rc, int expected, const char *says)
{
	assert_int_equal(rc, expected);
	if (!strstr(tn_error_last()->text, says))
		fail_msg("\"%s\" does not say \"%s\"", tn_error_last()->text, says);
}

static void paths_that_cannot_be_served_are_refused(void **state)
{
	char path[PATH], name[200], other[300];
	struct tn_cache *cache;
	struct rig r;
	int fd;

	rig_set_up(&r, 0, 8u << 20, 64);
	socket_path(&r, path);
	memset(name, 'x', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	fails(tn_cache_serve(r.cache, name, NULL), -ENAMETOOLONG, "199 bytes");
	fails(tn_cache_attach(name, patient(), &cache), -ENAMETOOLONG, "199 bytes");
	fails(tn_cache_attach(path, patient(), &cache), -ENOENT, path);
	snprintf(other, sizeof(other), "%s/file", r.dir);
	fclose(fopen(other, "w"));
	fails(tn_cache_serve(r.cache, other, NULL), -EEXIST, "no socket");
	fails(tn_cache_serve(r.cache, "/nowhere/socket", NULL), -ENOENT, "/nowhere/socket");
	assert_int_equal(tn_cache_serve(r.cache, path, NULL), 0);
	fails(tn_cache_serve(r.cache, path, NULL), -EALREADY, path);
	{
		struct rig second;

		rig_set_up(&second, 0, 8u << 20, 64);
		fails(tn_cache_serve(second.cache, path, NULL), -EADDRINUSE, "another process");
		rig_tear_down(&second);
	}
	assert_int_equal(tn_cache_attach(path, patient(), &cache), 0);
	fails(tn_cache_serve(cache, other, NULL), -EINVAL, "another process's");
	assert_int_equal(tn_cache_close(cache), 0);
	/* One that a dead owner has left is replaced, and the socket of another program is none of ours. */
	assert_int_equal(rig_close(&r), 0);
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	{
		struct sockaddr_un a = {.sun_family = AF_UNIX};

		memcpy(a.sun_path, path, strlen(path) + 1);
		assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
		assert_int_equal(listen(fd, 1), 0);
		fails(tn_cache_attach(path, patient(), &cache), -EPROTONOSUPPORT, "another program");
		rig_must_open(&r);
		fails(tn_cache_serve(r.cache, path, NULL), -EADDRINUSE, path);
		close(fd);
	}
	fails(tn_cache_attach(path, patient(), &cache), -ECONNREFUSED, "nobody serves");
	assert_int_equal(tn_cache_serve(r.cache, path, NULL), 0);
	rig_tear_down(&r);
}

static int serve_without_stat(void *arg)
{
	const char *path = arg;
	struct tn_cache_opts o;
	struct tn_cache *cache;

	tn_cache_opts_init(&o);
	o.host_bytes = 8u << 20;
	assert_int_equal(tn_cache_open(&o, &cache), 0);
	if (tn_test_forbid(TN_FORBID_STAT, ENOENT))
		return TN_TEST_SKIP;
	fails(tn_cache_serve(cache, path, NULL), -ENOENT, "cannot see the socket");
	return tn_cache_close(cache);
}

/* A server knows its own socket by the inode. One that it could not remove at its end must not be left. */
static void a_socket_that_cannot_be_seen_is_not_left_behind(void **state)
{
	char directory[] = "/tmp/tn-serve-XXXXXX", path[PATH];
	int rc;

	/* No rig: the child begins threads, which must not be after a fork of a process that has some. */
	assert_non_null(mkdtemp(directory));
	snprintf(path, sizeof(path), "%s/socket", directory);
	rc = tn_test_in_child(serve_without_stat, path);
	if (rc != TN_TEST_SKIP)
		assert_int_equal(rc, 0);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(rmdir(directory), 0);
	if (rc == TN_TEST_SKIP)
		tn_test_skip("no seccomp");
}

static void processes_of_another_version_are_refused(void **state)
{
	struct tn_wire_hello hello = {.magic = TN_WIRE_MAGIC, .page_bytes = 4096, .command_bytes = sizeof(struct tn_command)};
	struct tn_wire_welcome w;
	char path[PATH];
	struct rig r;

	set_up(&r);
	socket_path(&r, path);
	for (int i = 0; i < 4; i++) {
		struct tn_wire_hello h = hello;
		int fd = connect_to(path, SOCK_SEQPACKET);

		snprintf(h.version, sizeof(h.version), "%s", i == 1 ? "99.0.0" : tn_version());
		h.magic += i == 0;
		h.page_bytes *= i == 2 ? 16 : 1;
		assert_true(send(fd, &h, i == 3 ? 5 : sizeof(h), 0) > 0);
		assert_int_equal(recv(fd, &w, sizeof(w), 0), sizeof(w));
		assert_int_equal(w.status, -EPROTONOSUPPORT);
		assert_true(strlen(w.text) > 20);
		close(fd);
	}
	rig_tear_down(&r);
}

static void memory_is_made_in_whole_pages_and_freed_once(void **state)
{
	struct tn_memory_range range;
	struct tn_memory_desc d;
	struct tn_memory *memory;
	struct rig r, mine;
	uint64_t page;
	void *got;

	set_up(&r);
	attach(r.dir, &mine);
	tn_memory_desc_init(&d);
	d.nranges = 1;
	d.ranges = &range;
	fails(tn_memory_alloc(0, NULL, &got), -EINVAL, "0 bytes");
	fails(tn_memory_free(&range), -EINVAL, "not what tn_memory_alloc");
	assert_int_equal(tn_memory_alloc(3u << 20, &page, &got), 0);
	assert_true(page == 4096 || page == 2u << 20);
	range = (struct tn_memory_range){.address = (char *)got + 4096, .bytes = 2u << 20};
	assert_int_equal(tn_memory_register(mine.cache, &d, &memory), 0);
	assert_int_equal(tn_memory_unregister(memory), 0);
	assert_int_equal(tn_memory_free(got), 0);
	detach(&mine);
	rig_tear_down(&r);
}

static void only_so_many_processes_attach(void **state)
{
	struct tn_cache *cache[TN_ATTACHED_MAX], *other;
	char path[PATH];
	struct rig r;

	set_up(&r);
	socket_path(&r, path);
	for (uint32_t i = 0; i < TN_ATTACHED_MAX; i++)
		assert_int_equal(tn_cache_attach(path, patient(), &cache[i]), 0);
	fails(tn_cache_attach(path, patient(), &other), -EAGAIN, "the most there can be");
	assert_int_equal(tn_cache_close(cache[0]), 0);
	while (tn_cache_attach(path, patient(), &cache[0]))
		usleep(1000);
	for (uint32_t i = 0; i < TN_ATTACHED_MAX; i++)
		assert_int_equal(tn_cache_close(cache[i]), 0);
	rig_tear_down(&r);
}

int main(int argc, char **argv)
{
	static const struct body bodies[] = {
		{"load_and_save", load_and_save},
		{"wait_on_event", wait_on_event},
		{NULL, NULL},
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_one_process_saves_another_one_loads),
		cmocka_unit_test(a_save_waits_for_events_of_its_own_process),
		cmocka_unit_test(paths_that_cannot_be_served_are_refused),
		cmocka_unit_test(a_socket_that_cannot_be_seen_is_not_left_behind),
		cmocka_unit_test(processes_of_another_version_are_refused),
		cmocka_unit_test(memory_is_made_in_whole_pages_and_freed_once),
		cmocka_unit_test(only_so_many_processes_attach),
	};
	int rc = run_body(argc, argv, bodies);

	return rc >= 0 ? rc : cmocka_run_group_tests(tests, NULL, NULL);
}
