/* SPDX-License-Identifier: Apache-2.0 */
/* Memory whose pages go away: guarded, and not. */
#include "base/guard.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "base/thread.h"
#include "tn_test_child.h"

#define BYTES (64u << 10)

static unsigned char *map_file(int *fd)
{
	unsigned char *at;

	*fd = memfd_create("guard", MFD_CLOEXEC);
	assert_true(*fd >= 0);
	assert_int_equal(ftruncate(*fd, BYTES), 0);
	at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	assert_ptr_not_equal(at, MAP_FAILED);
	memset(at, 7, BYTES);
	return at;
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
		cmocka_unit_test(a_fault_elsewhere_is_the_programs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
