/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin gds over the tests' libcufile.so.0 (stub_cufile.c), whose calls fail when they are told to. Files are real ones, open with O_DIRECT; the
 * memory is the process's own. The program starts itself again with the stub's directory in LD_LIBRARY_PATH.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <tenuto/device_file.h>
#include <tenuto/plugin.h>

#include "base/rng.h"
#include "stub_cuda.h"
#include "stub_rig.h"
#include "tn_test.h"
#include "tn_test_child.h"

#define FILE_BYTES (1u << 20)
#define THREADS 32
#define PATHS 400 /* more than TN_DEVICE_FILES_MAX, so that places change hands */
#define TURNS 300

static char top[PATH_MAX];
static const struct tn_device_file_ops *gds;
static struct stub_cufile *stub;
static char detail[256];

static const char *path_of(const char *name, char path[PATH_MAX])
{
	if (snprintf(path, PATH_MAX, "%s/%s", top, name) >= PATH_MAX)
		abort();
	return path;
}

/* A file of bytes that say where they are: word i has first + i. */
static const char *make_file(const char *name, uint64_t first, char path[PATH_MAX])
{
	static uint64_t word[FILE_BYTES / 8];
	int fd = open(path_of(name, path), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	for (size_t i = 0; i < FILE_BYTES / 8; i++)
		word[i] = first + i;
	assert_int_equal(write(fd, word, sizeof(word)), sizeof(word));
	assert_int_equal(close(fd), 0);
	return path;
}

static void *make_memory(void)
{
	void *m = aligned_alloc(TN_DEVICE_FILE_ALIGN, FILE_BYTES);

	assert_non_null(m);
	return m;
}

static int get(const int *of)
{
	return __atomic_load_n(of, __ATOMIC_ACQUIRE);
}

static void set(int *of, int value)
{
	__atomic_store_n(of, value, __ATOMIC_RELEASE);
}

static void expect_detail(const char *word)
{
	if (!strstr(detail, word)) {
		print_error("'%s' is not in: %s\n", word, detail);
		fail();
	}
}

static unsigned count_descriptors(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 2048; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static struct tn_device_file *acquired(const char *path)
{
	struct tn_device_file *f = NULL;
	int rc = gds->acquire(path, 1, &f, detail, sizeof(detail));

	if (rc)
		print_error("%s: %s\n", path, detail);
	assert_int_equal(rc, 0);
	return f;
}

/* ---- the start: each in a process of its own -------------------------------------------------------- */

static int start(uint64_t wait_ns)
{
	return gds->start(tn_test_now() + wait_ns, detail, sizeof(detail));
}

static void *start_thread(void *arg)
{
	char own[256];

	return (void *)(intptr_t)gds->start(tn_test_deadline(), own, sizeof(own));
}

static int starts_once(void *arg)
{
	struct tn_device_file_properties p;
	pthread_t thread[THREADS];
	struct tn_device_file *f;
	void *rc;

	if (gds->acquire("/dev/null", 0, &f, detail, sizeof(detail)) != -EINVAL || gds->add(0, &f, detail, sizeof(detail)) != -EINVAL ||
	    gds->describe(&p, detail, sizeof(detail)) != -EINVAL || !strstr(detail, "call start first"))
		return 4;

	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&thread[i], NULL, start_thread, NULL))
			return 2;
	for (int i = 0; i < THREADS; i++)
		if (pthread_join(thread[i], &rc) || rc)
			return 3;
	return get(&stub->calls[STUB_OPEN]) != 1;
}

static int starts_late(void *arg)
{
	set(&stub->hold_open, 1);
	if (start(50000000) != -ETIMEDOUT || !strstr(detail, "nvidia-fs"))
		return 2;
	if (start(50000000) != -ETIMEDOUT || get(&stub->calls[STUB_OPEN]) != 1)
		return 3;
	set(&stub->hold_open, 0);
	return start(60 * TN_TEST_SECOND) || get(&stub->calls[STUB_OPEN]) != 1;
}

/* The process ends although the call never returns. */
static int never_starts(void *arg)
{
	set(&stub->hold_open, 1);
	return start(1) != -ETIMEDOUT;
}

static int fails_to_start(void *arg)
{
	set(&stub->fail[STUB_OPEN], 5001);
	if (start(60 * TN_TEST_SECOND) != -ENODEV || !strstr(detail, "cuFileDriverOpen") || !strstr(detail, "5001"))
		return 2;
	detail[0] = '\0';
	return start(60 * TN_TEST_SECOND) != -ENODEV || !strstr(detail, "5001") || get(&stub->calls[STUB_OPEN]) != 1;
}

static void threads_that_start_at_once_open_the_driver_once(void **state)
{
	assert_int_equal(tn_test_in_child(starts_once, NULL), 0);
}

static void a_driver_that_does_not_open_costs_the_deadline(void **state)
{
	assert_int_equal(tn_test_in_child(starts_late, NULL), 0);
	assert_int_equal(tn_test_in_child(never_starts, NULL), 0);
}

static void a_driver_that_fails_to_open_says_why_each_time(void **state)
{
	assert_int_equal(tn_test_in_child(fails_to_start, NULL), 0);
}

/* Starts in a program that looks for the library in `libraries` (NULL: where the system has it): 0, or the number of what is wrong. */
static int start_with(const char *libraries, const char *option)
{
	char *const argument[] = {(char *)(uintptr_t)"test-gds", (char *)(uintptr_t)option, NULL};
	char exe[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	int status;
	pid_t pid;

	assert_true(n > 0);
	exe[n] = '\0';
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		if (libraries)
			setenv("LD_LIBRARY_PATH", libraries, 1);
		else
			unsetenv("LD_LIBRARY_PATH");
		setenv("TN_GDS_PLUGINS", top, 1);
		execv(exe, argument);
		_exit(98);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void a_machine_without_the_library_is_told_what_to_install(void **state)
{
	assert_int_equal(start_with(NULL, "--without"), 0);
}

static void a_library_that_lacks_a_call_is_told_with_the_call(void **state)
{
	char dir[PATH_MAX], file[PATH_MAX], stub_file[PATH_MAX], both[2 * PATH_MAX];

	assert_int_equal(mkdir(path_of("lacks", dir), 0755), 0);
	snprintf(stub_file, sizeof(stub_file), "%.4000s/libcufile-lacks.so", stub_rig_built());
	assert_int_equal(symlink(stub_file, path_of("lacks/libcufile.so.0", file)), 0);
	snprintf(both, sizeof(both), "%s:%s", dir, stub_rig_built()); /* the stub itself needs that of CUDA, which lies there */
	assert_int_equal(start_with(both, "--lacks"), 0);
}

static int start_child(bool lacks)
{
	void *library = lacks ? NULL : dlopen("libcufile.so.0", RTLD_NOW);
	int rc;

	if (library) /* the machine has one */
		return 0;
	if (tn_plugin_path(getenv("TN_GDS_PLUGINS")) || tn_device_file_open("gds", &gds))
		return 2;
	rc = start(60 * TN_TEST_SECOND);
	if (lacks)
		return rc != -EPROTO || !strstr(detail, "cuFileWrite");
	return rc != -ENOENT || !strstr(detail, "LD_LIBRARY_PATH");
}

/* ---- transfers -------------------------------------------------------------------------------------- */

static void bytes_arrive_from_and_at_any_aligned_place(void **state)
{
	uint64_t *memory = make_memory(), first = tn_test_seed() << 32;
	char path[PATH_MAX];
	struct tn_device_file *f = acquired(make_file("bytes", first, path));
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (int i = 0; i < 200; i++) {
		uint64_t pages = 1 + tn_rng_below(&rng, 16), at = tn_rng_below(&rng, FILE_BYTES / 4096 - 16) * 4096ull;
		uint64_t *to = memory + tn_rng_below(&rng, FILE_BYTES / 4096 - 16) * 512ull;

		memset(memory, 0xee, FILE_BYTES);
		assert_int_equal(gds->read(f, to, pages * 4096, at, detail, sizeof(detail)), 0);
		for (uint64_t k = 0; k < pages * 512; k++)
			assert_true(to[k] == first + at / 8 + k);
		if (to + pages * 512 < memory + FILE_BYTES / 8)
			assert_true(to[pages * 512] == 0xeeeeeeeeeeeeeeeeu);
		/* The same bytes go back where they were. */
		assert_int_equal(gds->write(f, to, pages * 4096, at, detail, sizeof(detail)), 0);
	}
	assert_int_equal(gds->read(f, memory, 0, 0, detail, sizeof(detail)), 0);
	gds->release(f);
	free(memory);
}

/* A thread of an executor has no context; afterwards it has none, either. */
static void a_transfer_is_made_in_the_context_of_its_memory(void **state)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	struct stub_cuda *cuda = library ? dlsym(library, "stub_cuda") : NULL;
	int (*pushed)(void) = NULL;
	char *memory = make_memory(), path[PATH_MAX];
	struct tn_device_file *f = acquired(make_file("context", 0, path));

	assert_non_null(cuda);
	*(void **)&pushed = dlsym(library, "stub_cuda_pushed");
	assert_non_null(pushed);
	for (int kind = STUB_CUDA_UNKNOWN; kind <= STUB_CUDA_DEVICE; kind++) {
		set(&cuda->memory, kind);
		for (int i = 0; i < 3; i++) {
			assert_int_equal(gds->read(f, memory, 4096, 0, detail, sizeof(detail)), 0);
			assert_int_equal(gds->write(f, memory, 4096, 0, detail, sizeof(detail)), 0);
			set(&stub->fail[STUB_READ], 5044);
			assert_int_equal(gds->read(f, memory, 4096, 0, detail, sizeof(detail)), -EIO);
			assert_int_equal(pushed(), 0);
		}
	}
	assert_int_equal(get(&cuda->retained), 1);
	set(&cuda->memory, STUB_CUDA_UNKNOWN);
	gds->release(f);
	free(memory);
}

static void what_is_not_aligned_is_left_to_the_caller(void **state)
{
	char *memory = make_memory(), path[PATH_MAX];
	struct tn_device_file *f = acquired(make_file("aligned", 0, path));
	int reads = get(&stub->calls[STUB_READ]), writes = get(&stub->calls[STUB_WRITE]);

	assert_int_equal(gds->read(f, memory, 4096, 512, detail, sizeof(detail)), -ENOTSUP);
	expect_detail("at 512");
	assert_int_equal(gds->read(f, memory, 100, 0, detail, sizeof(detail)), -ENOTSUP);
	expect_detail("100 bytes");
	assert_int_equal(gds->read(f, memory + 8, 4096, 0, detail, sizeof(detail)), -ENOTSUP);
	assert_int_equal(gds->write(f, memory + 8, 4096, 0, detail, sizeof(detail)), -ENOTSUP);
	assert_int_equal(gds->read(f, memory, 4096, (uint64_t)INT64_MAX / 4096 * 4096, detail, sizeof(detail)), -EINVAL);
	assert_int_equal(gds->write(f, memory, UINT64_MAX / 4096 * 4096, 0, detail, sizeof(detail)), -EINVAL);
	assert_int_equal(get(&stub->calls[STUB_READ]), reads);
	assert_int_equal(get(&stub->calls[STUB_WRITE]), writes);
	gds->release(f);
	free(memory);
}

static void a_failure_of_each_call_is_told_and_the_next_one_works(void **state)
{
	struct tn_device_file_properties p;
	struct tn_device_file *f, *none = NULL;
	unsigned descriptors;
	char *memory = make_memory(), path[PATH_MAX], other[PATH_MAX];

	f = acquired(make_file("fails", 0, path));
	make_file("fails-too", 0, other);
	set(&stub->fail[STUB_READ], 5012);
	assert_int_equal(gds->read(f, memory, 4096, 0, detail, sizeof(detail)), -EFAULT);
	expect_detail("cuFileRead: error 5012");
	set(&stub->fail[STUB_READ], -EIO);
	assert_int_equal(gds->read(f, memory, 4096, 0, detail, sizeof(detail)), -EIO);
	expect_detail("Input/output error");
	set(&stub->fail[STUB_WRITE], 5008);
	assert_int_equal(gds->write(f, memory, 4096, 0, detail, sizeof(detail)), -ENOTSUP);
	expect_detail("cuFileWrite: error 5008");
	set(&stub->fail[STUB_WRITE], -ENOSPC);
	assert_int_equal(gds->write(f, memory, 4096, 0, detail, sizeof(detail)), -ENOSPC);
	set(&stub->fail[STUB_WRITE], 5999);
	assert_int_equal(gds->write(f, memory, 4096, 0, detail, sizeof(detail)), -EIO);
	expect_detail("5999");
	set(&stub->fail[STUB_REGISTER], 5020);
	descriptors = count_descriptors();
	assert_int_equal(gds->acquire(other, 0, &none, detail, sizeof(detail)), -ENOTSUP);
	assert_int_equal(count_descriptors(), descriptors);
	expect_detail("O_DIRECT");
	assert_null(none);
	set(&stub->fail[STUB_PROPERTIES], 5011);
	assert_int_equal(gds->describe(&p, detail, sizeof(detail)), -EIO);
	expect_detail("cuFileDriverGetProperties");
	assert_int_equal(gds->describe(&p, detail, sizeof(detail)), 0);
	assert_int_equal(gds->read(f, memory, 4096, 0, detail, sizeof(detail)), 0);
	assert_int_equal(gds->write(f, memory, 4096, 0, detail, sizeof(detail)), 0);
	gds->release(acquired(other));
	gds->release(f);
	free(memory);
}

static void a_short_transfer_is_an_error(void **state)
{
	char *memory = make_memory(), path[PATH_MAX];
	struct tn_device_file *f = acquired(make_file("short", 0, path));

	set(&stub->shorter, 4096);
	assert_int_equal(gds->read(f, memory, 8192, 0, detail, sizeof(detail)), -EIO);
	expect_detail("4096 of 8192 bytes");
	set(&stub->shorter, 4096);
	assert_int_equal(gds->write(f, memory, 8192, 0, detail, sizeof(detail)), -EIO);
	expect_detail("4096 of 8192 bytes");
	assert_int_equal(gds->read(f, memory, 8192, FILE_BYTES - 4096, detail, sizeof(detail)), -EIO); /* the file ends there */
	assert_int_equal(gds->read(f, memory, 4096, FILE_BYTES, detail, sizeof(detail)), -EIO);
	expect_detail("0 of 4096 bytes");
	gds->release(f);
	free(memory);
}

static void how_bytes_move_is_told_apart(void **state)
{
	struct tn_device_file_properties p;

	assert_int_equal(gds->describe(&p, detail, sizeof(detail)), 0);
	assert_int_equal(p.way, TN_DEVICE_FILE_HOST);
	assert_int_equal(p.version, 1200);
	__atomic_store_n(&stub->feature_flags, 1u << 4, __ATOMIC_RELEASE);
	assert_int_equal(gds->describe(&p, detail, sizeof(detail)), 0);
	assert_int_equal(p.way, TN_DEVICE_FILE_P2PDMA);
	set(&stub->module_major, 2);
	assert_int_equal(gds->describe(&p, detail, sizeof(detail)), 0);
	assert_int_equal(p.way, TN_DEVICE_FILE_MODULE);
	assert_int_equal(p.module_major, 2);
	assert_int_equal(p.module_minor, 7);
	set(&stub->module_major, 0);
	__atomic_store_n(&stub->feature_flags, 0, __ATOMIC_RELEASE);
}

/* ---- files ------------------------------------------------------------------------------------------ */

static void a_descriptor_of_the_caller_s_keeps_its_lock(void **state)
{
	char path[PATH_MAX], *memory = make_memory();
	struct tn_device_file *f;
	int own, second;

	make_file("locked", 0, path);
	own = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
	second = open(path, O_RDWR | O_CLOEXEC);
	assert_true(own >= 0 && second >= 0);
	assert_int_equal(flock(own, LOCK_EX | LOCK_NB), 0);
	set(&stub->fail[STUB_REGISTER], 5018);
	assert_int_equal(gds->add(own, &f, detail, sizeof(detail)), -ENOTSUP);
	assert_int_equal(gds->add(own, &f, detail, sizeof(detail)), 0);
	assert_int_equal(gds->read(f, memory, 4096, 0, detail, sizeof(detail)), 0);
	assert_int_equal(gds->cleanup(), 0); /* it is not one of acquire's */
	gds->remove(f);
	assert_int_equal(flock(second, LOCK_EX | LOCK_NB), -1);
	assert_int_equal(errno, EWOULDBLOCK);
	assert_int_equal(close(own), 0);
	assert_int_equal(flock(second, LOCK_EX | LOCK_NB), 0);
	close(second);
	free(memory);
}

static void a_file_is_registered_once_until_its_place_is_wanted(void **state)
{
	char path[PATH_MAX], same[PATH_MAX];
	struct tn_device_file *f, *again, *reader;
	int before;

	assert_int_equal(gds->cleanup(), 0);
	before = get(&stub->calls[STUB_REGISTER]);
	f = acquired(make_file("once", 0, path));
	again = acquired(path);
	assert_ptr_equal(f, again);
	assert_int_equal(symlink(path, path_of("once-too", same)), 0);
	gds->release(again);
	again = acquired(same);
	assert_ptr_equal(f, again);
	assert_int_equal(get(&stub->calls[STUB_REGISTER]), before + 1);
	assert_int_equal(gds->acquire(path, 0, &reader, detail, sizeof(detail)), 0); /* one that may not write */
	assert_ptr_not_equal(reader, f);
	assert_int_equal(gds->cleanup(), 2);
	gds->release(reader);
	gds->release(f);
	gds->release(again);
	assert_int_equal(get(&stub->registered), 2);
	assert_int_equal(gds->cleanup(), 0);
	assert_int_equal(get(&stub->registered), 0);
}

static void a_file_that_was_replaced_is_another_one(void **state)
{
	uint64_t *memory = make_memory();
	char path[PATH_MAX], next[PATH_MAX];
	struct tn_device_file *old = acquired(make_file("replaced", 1000, path)), *new;

	make_file("replaced-by", 2000000, next);
	assert_int_equal(rename(next, path), 0);
	new = acquired(path);
	assert_ptr_not_equal(old, new);
	assert_int_equal(gds->read(old, memory, 4096, 0, detail, sizeof(detail)), 0);
	assert_true(memory[0] == 1000);
	assert_int_equal(gds->read(new, memory, 4096, 0, detail, sizeof(detail)), 0);
	assert_true(memory[0] == 2000000);
	gds->release(old);
	gds->release(new);
	free(memory);
}

static const char *small_file(unsigned i, char path[PATH_MAX])
{
	static const char page[4096];
	char name[32];
	int fd;

	snprintf(name, sizeof(name), "small-%u", i);
	fd = open(path_of(name, path), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, page, sizeof(page)), sizeof(page));
	assert_int_equal(pwrite(fd, &i, sizeof(i), 0), sizeof(i));
	close(fd);
	return path;
}

static void beyond_the_most_files_acquire_says_so(void **state)
{
	static struct tn_device_file *f[TN_DEVICE_FILES_MAX];
	struct tn_device_file *one_more;
	char path[PATH_MAX], absent[PATH_MAX];
	int before;

	assert_int_equal(gds->cleanup(), 0);
	for (unsigned i = 0; i < TN_DEVICE_FILES_MAX; i++)
		f[i] = acquired(small_file(i, path));
	small_file(TN_DEVICE_FILES_MAX, path);
	assert_int_equal(gds->acquire(path, 1, &one_more, detail, sizeof(detail)), -EAGAIN);
	expect_detail("256 files");
	gds->release(f[7]);
	gds->release(f[3]);
	f[7] = acquired(path); /* in the place of the one that was released first */
	assert_int_equal(get(&stub->registered), TN_DEVICE_FILES_MAX);
	before = get(&stub->calls[STUB_REGISTER]);
	f[3] = acquired(path_of("small-3", path));
	assert_int_equal(get(&stub->calls[STUB_REGISTER]), before);
	assert_int_equal(gds->acquire(path_of("absent", absent), 1, &one_more, detail, sizeof(detail)), -ENOENT);
	expect_detail("absent");
	for (unsigned i = 0; i < TN_DEVICE_FILES_MAX; i++)
		gds->release(f[i]);
	assert_int_equal(gds->cleanup(), 0);
	assert_int_equal(get(&stub->registered), 0);
}

/* Takes and gives back files at random, and reads each: what it gets is the file's own. NULL: all was right. */
static void *use_files(void *arg)
{
	uint32_t *memory = aligned_alloc(TN_DEVICE_FILE_ALIGN, 4096);
	struct tn_device_file *f;
	char path[PATH_MAX], name[32], own[256];
	const char *wrong = memory ? NULL : "no memory";
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed() + (uintptr_t)arg);
	for (int i = 0; i < TURNS && !wrong; i++) {
		unsigned at = tn_rng_below(&rng, tn_rng_below(&rng, 2) ? PATHS : 8);
		int rc;

		snprintf(name, sizeof(name), "small-%u", at);
		if (tn_rng_below(&rng, 16) == 0)
			set(&stub->fail[STUB_REGISTER], 5020); /* somebody's next one: those who wait for it try again */
		rc = gds->acquire(path_of(name, path), (int)tn_rng_below(&rng, 2), &f, own, sizeof(own));
		if (rc == -ENOTSUP)
			continue;
		if (rc)
			wrong = "acquire";
		else if (gds->read(f, memory, 4096, 0, own, sizeof(own)) || memory[0] != at)
			wrong = "read";
		if (rc == 0)
			gds->release(f);
		if (tn_rng_below(&rng, 100) == 0)
			gds->cleanup();
	}
	free(memory);
	return (void *)(uintptr_t)wrong;
}

static void many_threads_share_the_files(void **state)
{
	pthread_t thread[THREADS];
	char path[PATH_MAX];
	unsigned before;
	void *wrong;

	for (unsigned i = 0; i < PATHS; i++)
		small_file(i, path);
	assert_int_equal(gds->cleanup(), 0);
	before = count_descriptors();
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, use_files, (void *)i), 0);
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(thread[i], &wrong), 0);
		if (wrong)
			print_error("thread %d: %s\n", i, (const char *)wrong);
		assert_null(wrong);
	}
	set(&stub->fail[STUB_REGISTER], 0);
	assert_in_range(get(&stub->registered), 0, TN_DEVICE_FILES_MAX);
	assert_int_equal(gds->cleanup(), 0);
	assert_int_equal(get(&stub->registered), 0);
	assert_int_equal(count_descriptors(), before);
}

/* ---- */

static void the_driver_starts(void **state)
{
	assert_int_equal(start(60 * TN_TEST_SECOND), 0);
}

static int run_all(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_that_start_at_once_open_the_driver_once),
		cmocka_unit_test(a_driver_that_does_not_open_costs_the_deadline),
		cmocka_unit_test(a_driver_that_fails_to_open_says_why_each_time),
		cmocka_unit_test(a_machine_without_the_library_is_told_what_to_install),
		cmocka_unit_test(a_library_that_lacks_a_call_is_told_with_the_call),
		cmocka_unit_test(the_driver_starts), /* in this process: those above have processes of their own */
		cmocka_unit_test(bytes_arrive_from_and_at_any_aligned_place),
		cmocka_unit_test(a_transfer_is_made_in_the_context_of_its_memory),
		cmocka_unit_test(what_is_not_aligned_is_left_to_the_caller),
		cmocka_unit_test(a_failure_of_each_call_is_told_and_the_next_one_works),
		cmocka_unit_test(a_short_transfer_is_an_error),
		cmocka_unit_test(how_bytes_move_is_told_apart),
		cmocka_unit_test(a_descriptor_of_the_caller_s_keeps_its_lock),
		cmocka_unit_test(a_file_is_registered_once_until_its_place_is_wanted),
		cmocka_unit_test(a_file_that_was_replaced_is_another_one),
		cmocka_unit_test(beyond_the_most_files_acquire_says_so),
		cmocka_unit_test(many_threads_share_the_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
	int rc;

	if (argc == 2)
		return start_child(strcmp(argv[1], "--lacks") == 0);
	if (!stub_rig_built())
		return tn_test_skip_all("no /proc");
	stub = stub_rig_up(argv, top);
	if (!stub || tn_device_file_open("gds", &gds))
		return 1;
	rc = run_all();
	stub_rig_down(top);
	return rc;
}
