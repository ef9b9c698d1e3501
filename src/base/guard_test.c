/* SPDX-License-Identifier: Apache-2.0 */
/* Memory whose pages go away: guarded, and not. */
#include "base/guard.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/thread.h"
#include "tn_test_child.h"

#define BYTES (64u << 10)
#define LARGE ((5u << 20) + 8192u) /* more than there is spare memory */

static unsigned char *map_bytes(int *fd, size_t bytes)
{
	unsigned char *at;

	*fd = memfd_create("guard", MFD_CLOEXEC);
	assert_true(*fd >= 0);
	assert_int_equal(ftruncate(*fd, (off_t)bytes), 0);
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	assert_ptr_not_equal(at, MAP_FAILED);
	memset(at, 7, bytes);
	return at;
}

static unsigned char *map_file(int *fd)
{
	return map_bytes(fd, BYTES);
}

static unsigned char read_at(const unsigned char *at)
{
	return *(const volatile unsigned char *)at;
}

/* On a thread of the library, which takes no other signal. */
static void *add_up(void *arg)
{
	const unsigned char *at = arg;
	uint64_t sum = 0;

	for (uint32_t i = 0; i < BYTES; i++)
		sum += read_at(at + i);
	return (void *)(uintptr_t)sum;
}

static void pages_that_are_gone_read_as_zeros_and_are_marked(void **state)
{
	struct tn_guard g = {0}, other = {0};
	uint32_t lost = 0, other_lost = 0;
	int fd, other_fd;
	unsigned char *at = map_file(&fd), *beside = map_file(&other_fd);
	pthread_t thread;
	void *sum;

	assert_int_equal(tn_guard_add(&g, at, BYTES, &lost), 0);
	assert_int_equal(tn_guard_add(&other, beside, BYTES, &other_lost), 0);
	assert_int_equal(read_at(at + BYTES - 1), 7);
	assert_int_equal(lost, 0);
	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_int_equal(tn_thread_start(&thread, add_up, at), 0);
	pthread_join(thread, &sum);
	assert_int_equal((uintptr_t)sum, 7 * 4096);
	assert_int_equal(lost, 1);
	assert_int_equal(other_lost, 0);
	assert_int_equal(read_at(beside + BYTES - 1), 7);
	memset(at, 1, BYTES); /* nobody else's any more */
	tn_guard_remove(&g);
	tn_guard_remove(&g);
	tn_guard_remove(&other);
	munmap(at, BYTES);
	munmap(beside, BYTES);
	close(fd);
	close(other_fd);
}

/* Touches each of its pages, the last one first. */
static void *touch_all(void *arg)
{
	unsigned char *at = arg;

	for (size_t i = LARGE; i > 0; i -= 4096) {
		__atomic_load_n(at + i - 4096, __ATOMIC_RELAXED);
		__atomic_store_n(at + i - 1, 9, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Two threads meet pages that are gone, which are more than the spare memory has. */
static void large_memory_goes_away_under_two_threads(void **state)
{
	struct tn_guard g = {0};
	uint32_t lost = 0;
	int fd;
	unsigned char *at = map_bytes(&fd, LARGE);
	pthread_t thread[2];

	assert_int_equal(tn_guard_add(&g, at, LARGE, &lost), 0);
	assert_int_equal(ftruncate(fd, 0), 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(tn_thread_start(&thread[i], touch_all, at), 0);
	for (unsigned i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(lost, 1);
	tn_guard_remove(&g);
	munmap(at, LARGE);
	close(fd);
}

/* A limit of the process does what the kernel does with vm.overcommit_memory 2 once all is committed: it refuses private memory, and only that. */
static int lose_without_memory(void *arg)
{
	const struct rlimit none = {4096, 4096};
	struct tn_guard g = {0};
	uint32_t lost = 0;
	int fd;
	unsigned char *at = map_bytes(&fd, LARGE);

	if (tn_guard_add(&g, at, LARGE, &lost) || ftruncate(fd, 0) || setrlimit(RLIMIT_DATA, &none))
		return 1;
	if (mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED)
		return 2;
	touch_all(at);
	return lost ? 0 : 3;
}

static void pages_may_go_when_no_more_memory_is_to_be_had(void **state)
{
	assert_int_equal(tn_test_in_child(lose_without_memory, NULL), 0);
}

/* ---- forks ------------------------------------------------------------------------------------------------ */

#define FORKS 40u

struct guarding {
	unsigned char *at;
	uint32_t stop; /* shared */
};

static void *add_and_remove(void *arg)
{
	struct guarding *w = arg;
	struct tn_guard g = {0};
	uint32_t lost = 0;

	while (!__atomic_load_n(&w->stop, __ATOMIC_RELAXED)) {
		if (tn_guard_add(&g, w->at, BYTES, &lost))
			return w;
		tn_guard_remove(&g);
	}
	return NULL;
}

/* As a child may that opens a cache of its own. arg: a guard of its parent. */
static int guard_in_a_child(void *arg)
{
	struct tn_guard g = {0};
	uint32_t lost = 0;
	int fd;
	unsigned char *at = map_file(&fd);

	alarm(60);
	tn_guard_remove(arg);
	if (tn_guard_add(&g, at, BYTES, &lost) || ftruncate(fd, 0))
		return 1;
	if (read_at(at) != 0 || !lost) /* the parent's spare memory has something else */
		return 2;
	tn_guard_remove(&g);
	return 0;
}

static void a_child_guards_whatever_its_parent_does_at_the_fork(void **state)
{
	struct tn_guard g = {0};
	uint32_t lost = 0;
	int fd, other;
	struct guarding w = {.at = map_file(&fd)};
	unsigned char *gone = map_file(&other);
	pthread_t thread;
	void *failed;

	assert_int_equal(tn_guard_add(&g, gone, BYTES, &lost), 0);
	assert_int_equal(ftruncate(other, 0), 0);
	memset(gone, 5, BYTES);
	assert_int_equal(lost, 1);
	assert_int_equal(tn_thread_start(&thread, add_and_remove, &w), 0);
	for (uint32_t i = 0; i < FORKS; i++)
		assert_int_equal(tn_test_in_child(guard_in_a_child, &g), 0);
	__atomic_store_n(&w.stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, &failed);
	assert_null(failed);
	tn_guard_remove(&g);
	munmap(gone, BYTES);
	munmap(w.at, BYTES);
	close(other);
	close(fd);
}

/* ---- faults elsewhere ------------------------------------------------------------------------------------- */

static void exit_with_three(int signal, siginfo_t *info, void *context)
{
	_exit(3);
}

/* arg: whether the program has a handler of its own. */
static int fault_elsewhere(void *arg)
{
	struct sigaction a = {.sa_sigaction = exit_with_three, .sa_flags = SA_SIGINFO};
	struct tn_guard g = {0};
	uint32_t lost = 0;
	int fd, guarded;
	unsigned char *at = map_file(&fd);

	if (arg)
		sigaction(SIGBUS, &a, NULL);
	else
		signal(SIGBUS, SIG_DFL);
	if (tn_guard_add(&g, map_file(&guarded), BYTES, &lost) || ftruncate(fd, 0))
		return 1;
	read_at(at);
	return 2;
}

static void a_fault_elsewhere_is_the_programs(void **state)
{
	assert_int_equal(tn_test_in_child(fault_elsewhere, (void *)1), 3);
	assert_int_equal(tn_test_in_child(fault_elsewhere, NULL), 1000 + SIGBUS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_that_are_gone_read_as_zeros_and_are_marked),
		cmocka_unit_test(large_memory_goes_away_under_two_threads),
		cmocka_unit_test(pages_may_go_when_no_more_memory_is_to_be_had),
		cmocka_unit_test(a_child_guards_whatever_its_parent_does_at_the_fork),
		cmocka_unit_test(a_fault_elsewhere_is_the_programs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
