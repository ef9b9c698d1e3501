/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong around a heap: no descriptors left, forked children, a master that answers nonsense, files of dead masters. */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "heap/heap_internal.h"
#include "heap/heap_rig.h"

static _Atomic uint32_t refusals; /* how often the kernel will not pass descriptors on */

ssize_t __real_sendmsg(int sock, const struct msghdr *m, int flags);
ssize_t __wrap_sendmsg(int sock, const struct msghdr *m, int flags);

ssize_t __wrap_sendmsg(int sock, const struct msghdr *m, int flags)
{
	if (m->msg_controllen == 0 || refusals == 0)
		return __real_sendmsg(sock, m, flags);
	refusals--;
	errno = ETOOMANYREFS;
	return -1;
}

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * TN_TEST_SECOND + (uint64_t)t.tv_nsec;
}

/* Rank 2, which comes while the master has no descriptor for it. */
static int join_late(void *arg)
{
	assert_int_equal(setrlimit(RLIMIT_NOFILE, arg), 0);
	tn_heap_destroy(heap_open(3, 2, NULL));
	return 0;
}

static void a_master_without_descriptors_serves_whom_it_knows_and_does_not_spin(void **state)
{
	struct tn_heap_opts o = heap_opts(8);
	struct tn_heap *heap, *other;
	struct rlimit few, usual;
	uint64_t key = 1, word = 2, began;
	pid_t late;
	int next;

	heap_new_name();
	o.reclaim_ns = 60 * TN_TEST_SECOND; /* few sweeps */
	heap = heap_open(3, 0, &o);
	other = heap_open(3, 1, NULL);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
	few = usual;
	next = dup(0);
	close(next);
	few.rlim_cur = (rlim_t)next;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	late = heap_process(join_late, &usual);
	nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* it has connected */
	began = cpu_ns();
	nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
	assert_true(cpu_ns() - began < TN_TEST_SECOND / 125); /* a spinning thread would get more on a busy machine, too */
	assert_int_equal(tn_heap_put(other, &key, 8, &word, 8, 0, 0), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
	assert_int_equal(heap_join_process(late), 0);
	tn_heap_destroy(other);
	tn_heap_destroy(heap);
}

static void a_rank_asks_again_while_too_many_descriptors_are_on_their_way(void **state)
{
	struct tn_heap_opts o = heap_opts(8);
	struct tn_heap *heap, *other;
	uint64_t key = 1, word = 2;

	heap_new_name();
	o.timeout_ns = TN_TEST_SECOND / 20;
	heap = heap_open(2, 0, &o);
	refusals = UINT32_MAX;
	assert_int_equal(tn_heap_create(heap_name, 2, 1, &o, &other), -ETOOMANYREFS);
	assert_non_null(strstr(tn_error_last()->text, "RLIMIT_NOFILE"));
	refusals = 3;
	o.timeout_ns = 20 * TN_TEST_SECOND;
	other = heap_open(2, 1, &o);
	assert_int_equal(refusals, 0);
	assert_int_equal(tn_heap_put(other, &key, 8, &word, 8, 0, 0), 0);
	tn_heap_destroy(other);
	tn_heap_destroy(heap);
}

/* Rank 0: forks a child once rank 1 has asked it for something. Sends the child's number, and waits to be killed. */
static int lead_and_fork(void *arg)
{
	struct tn_heap_opts o = heap_opts(8);
	struct tn_heap *heap = heap_open(2, 0, &o);
	struct tn_heap_meta meta;
	uint64_t key = 1;
	pid_t child;

	heap_wait_until(tn_heap_get_location(heap, &key, 8, &meta) == 0);
	child = fork();
	if (child == 0) {
		alarm(60);
		pause();
	}
	assert_int_equal(write(*(int *)arg, &child, sizeof(child)), sizeof(child));
	pause();
	return 0;
}

static void a_dead_master_is_gone_at_once_though_a_child_of_it_lives(void **state)
{
	struct tn_heap_opts o = heap_opts(8);
	uint64_t key = 1, word = 2;
	struct tn_heap *heap;
	pid_t master, child;
	int pipes[2];

	heap_new_name();
	assert_int_equal(pipe(pipes), 0);
	o.timeout_ns = 3 * TN_TEST_SECOND;
	master = heap_process(lead_and_fork, &pipes[1]);
	heap = heap_open(2, 1, &o);
	assert_int_equal(tn_heap_put(heap, &key, 8, &word, 8, 0, 0), 0);
	assert_int_equal(read(pipes[0], &child, sizeof(child)), sizeof(child));
	heap_kill(master);
	assert_int_equal(tn_heap_remove(heap, &key, 8), -ESHUTDOWN);
	assert_int_equal(tn_heap_take_over(heap), 0);
	assert_int_equal(tn_heap_remove(heap, &key, 8), 0);
	kill(child, SIGKILL);
	tn_heap_destroy(heap);
	close(pipes[0]);
	close(pipes[1]);
}

/* Answers one request with a plan that is another one than was wanted, in the way that *arg says. */
struct false_answer {
	int sock;
	struct tn_heap_told told;
};

static void *answer_falsely(void *arg)
{
	struct false_answer *f = arg;
	struct tn_heap_ask ask;

	assert_int_equal(recv(f->sock, &ask, sizeof(ask), 0), sizeof(ask));
	assert_int_equal(send(f->sock, &f->told, tn_heap_told_bytes(&f->told), 0), tn_heap_told_bytes(&f->told));
	return NULL;
}

static int open_with_answer(struct tn_heap *heap, uint64_t bytes, const struct tn_heap_plan *plan)
{
	struct false_answer f = {.told = {.magic = TN_HEAP_WIRE_MAGIC, .plan = *plan}};
	struct tn_heap_plan got;
	uint64_t key = 9;
	int pair[2], rc;
	pthread_t thread;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	tn_heap_hang_up(heap);
	heap->sock = pair[0];
	f.sock = pair[1];
	assert_int_equal(pthread_create(&thread, NULL, answer_falsely, &f), 0);
	rc = tn_heap_open_for_write(heap, &key, 8, bytes, 0, 0, &got);
	pthread_join(thread, NULL);
	close(pair[1]);
	tn_heap_hang_up(heap);
	return rc;
}

static void a_plan_that_is_not_what_was_wanted_is_refused(void **state)
{
	struct tn_heap_opts o = heap_opts(8);
	struct tn_heap_plan plan, bad;
	struct tn_heap *heap, *other;
	uint64_t key = 1, epoch_before;

	heap_new_name();
	heap = heap_open(2, 0, &o);
	other = heap_open(2, 1, NULL);
	assert_int_equal(tn_heap_open_for_write(heap, &key, 8, HEAP_PAGE, 0, 0, &plan), 0);
	epoch_before = plan.epoch;
	for (uint32_t what = 0; what < 7; what++) {
		bad = plan;
		switch (what) {
		case 0: bad.bytes_total = 8; break; /* the caller would write a page */
		case 1: bad.dst_rank = 1; break;
		case 2: bad.page_bytes = 2 * HEAP_PAGE; break;
		case 3: bad.n_pages = 2; break;
		case 4: bad.payload_base = heap->memory.layout.heap_limit - 8; break;
		case 5: bad.payload_base = 0; break;
		default: bad.header_off += 64; break;
		}
		assert_int_equal(open_with_answer(other, HEAP_PAGE, &bad), -EINVAL);
	}
	assert_int_equal(open_with_answer(other, HEAP_PAGE, &plan), -ESTALE); /* as it should be, but begun already */
	assert_int_equal(plan.epoch, epoch_before);
	assert_int_equal(tn_heap_commit(heap, &plan), 0);
	tn_heap_destroy(other);
	tn_heap_destroy(heap);
}

static int lead_alone(void *arg)
{
	struct tn_heap_opts o = heap_opts(4);

	heap_open(1, 0, &o);
	assert_int_equal(write(*(int *)arg, "", 1), 1);
	pause();
	return 0;
}

static bool has_file(const char *name, const char *ending)
{
	char file[TN_HEAP_NAME_MAX + 8];
	int directory;
	bool there;

	snprintf(file, sizeof(file), "%s.%s", name, ending);
	assert_int_equal(tn_heap_directory_open(&directory), 0);
	there = faccessat(directory, file, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
	close(directory);
	return there;
}

static void the_files_of_a_killed_master_go_when_the_next_heap_is_made(void **state)
{
	struct tn_heap_opts o = heap_opts(4);
	char killed[TN_HEAP_NAME_MAX], living[TN_HEAP_NAME_MAX];
	pid_t dead, alive;
	int pipes[2];
	char c;

	assert_int_equal(pipe(pipes), 0);
	heap_new_name();
	memcpy(killed, heap_name, sizeof(killed));
	dead = heap_process(lead_alone, &pipes[1]);
	assert_int_equal(read(pipes[0], &c, 1), 1);
	heap_new_name();
	memcpy(living, heap_name, sizeof(living));
	alive = heap_process(lead_alone, &pipes[1]);
	assert_int_equal(read(pipes[0], &c, 1), 1);
	heap_kill(dead);
	assert_true(has_file(killed, "lock") && has_file(killed, "sock"));
	heap_new_name();
	tn_heap_destroy(heap_open(1, 0, &o));
	assert_false(has_file(killed, "lock") || has_file(killed, "sock"));
	assert_false(has_file(heap_name, "lock") || has_file(heap_name, "sock"));
	assert_true(has_file(living, "lock") && has_file(living, "sock"));
	heap_kill(alive);
	close(pipes[0]);
	close(pipes[1]);
}

/* The lock of the heap that is made next, as a process has it that removes old files. */
struct held {
	int directory, lock;
	char name[TN_HEAP_NAME_MAX + 8];
};

static void hold_lock(struct held *h)
{
	heap_new_name();
	snprintf(h->name, sizeof(h->name), "%.*s.lock", TN_HEAP_NAME_MAX, heap_name);
	assert_int_equal(tn_heap_directory_open(&h->directory), 0);
	h->lock = openat(h->directory, h->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(flock(h->lock, LOCK_EX | LOCK_NB), 0);
}

static void drop_held(struct held *h)
{
	close(h->lock);
	close(h->directory);
}

static void *remove_lock_late(void *arg)
{
	struct held *h = arg;

	nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
	assert_int_equal(unlinkat(h->directory, h->name, 0), 0);
	return NULL;
}

static void who_removes_old_files_slowly_is_not_taken_for_a_master(void **state)
{
	struct tn_heap_opts o = heap_opts(4);
	struct tn_heap *heap;
	pthread_t thread;
	struct held h;

	hold_lock(&h);
	o.timeout_ns = 5 * TN_TEST_SECOND;
	assert_int_equal(pthread_create(&thread, NULL, remove_lock_late, &h), 0);
	tn_heap_destroy(heap_open(1, 0, &o)); /* the lock of a file that is no more is held still */
	pthread_join(thread, NULL);
	drop_held(&h);
	hold_lock(&h);
	o.timeout_ns = TN_TEST_SECOND / 20;
	assert_int_equal(tn_heap_create(heap_name, 1, 0, &o, &heap), -ETIMEDOUT);
	assert_non_null(strstr(tn_error_last()->text, h.name));
	drop_held(&h);
	tn_heap_destroy(heap_open(1, 0, &o)); /* the file is there still */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_master_without_descriptors_serves_whom_it_knows_and_does_not_spin),
		cmocka_unit_test(a_rank_asks_again_while_too_many_descriptors_are_on_their_way),
		cmocka_unit_test(a_dead_master_is_gone_at_once_though_a_child_of_it_lives),
		cmocka_unit_test(a_plan_that_is_not_what_was_wanted_is_refused),
		cmocka_unit_test(who_removes_old_files_slowly_is_not_taken_for_a_master),
		cmocka_unit_test(the_files_of_a_killed_master_go_when_the_next_heap_is_made),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
