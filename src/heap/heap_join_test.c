/* SPDX-License-Identifier: Apache-2.0 */
/* Who may join a heap, as whom, and what a failed attempt leaves behind. */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "heap/heap_internal.h"
#include "heap/heap_rig.h"

/* A socket with a heap's name, of somebody who is no master. */
static int false_master(int backlog)
{
	struct sockaddr_un address;
	int sock = socket(AF_UNIX, SOCK_SEQPACKET, 0), directory;
	socklen_t len;

	assert_int_equal(tn_heap_directory_open(&directory), 0);
	len = tn_heap_address(directory, heap_name, &address);
	assert_int_equal(bind(sock, (struct sockaddr *)&address, len), 0);
	close(directory);
	assert_int_equal(listen(sock, backlog), 0);
	return sock;
}

static void end_false_master(int sock)
{
	char name[TN_HEAP_NAME_MAX + 8];
	int directory;

	snprintf(name, sizeof(name), "%s.sock", heap_name);
	assert_int_equal(tn_heap_directory_open(&directory), 0);
	unlinkat(directory, name, 0);
	close(directory);
	close(sock);
}

static int connect_to_master(int sock)
{
	struct sockaddr_un address;
	int directory, rc;
	socklen_t len;

	assert_int_equal(tn_heap_directory_open(&directory), 0);
	len = tn_heap_address(directory, heap_name, &address);
	rc = connect(sock, (struct sockaddr *)&address, len);
	close(directory);
	return rc;
}

static uint32_t open_descriptors(void)
{
	uint32_t n = 0;

	for (int fd = 0; fd < 200; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* Answers one request with a message that is too short, and a descriptor. */
static void *answer_short(void *arg)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	struct tn_heap_ask ask;
	struct iovec iov = {&ask, 8};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	int sock = accept(*(int *)arg, NULL, NULL);

	memcpy(CMSG_DATA(&control.head), &sock, sizeof(int));
	assert_int_equal(recv(sock, &ask, sizeof(ask), 0), sizeof(ask));
	assert_int_equal(sendmsg(sock, &m, 0), 8);
	close(sock);
	return NULL;
}

/* Leaves the numbers of descriptors where a join's variables will lie. */
static __attribute__((noinline)) void litter_stack(int fd)
{
	int litter[4096];

	for (uint32_t i = 0; i < 4096; i++)
		litter[i] = fd;
	__asm__ volatile("" : : "r"(litter) : "memory");
}

static void a_join_that_fails_closes_what_it_was_sent_and_nothing_else(void **state)
{
	struct tn_heap_opts o = heap_opts(4);
	struct tn_heap *heap;
	pthread_t thread;
	uint32_t before;
	int sock, bystander;

	heap_new_name();
	o.timeout_ns = TN_TEST_SECOND / 20;
	sock = false_master(4);
	bystander = dup(sock);
	before = open_descriptors();
	litter_stack(bystander);
	assert_int_equal(tn_heap_create(heap_name, 2, 1, &o, &heap), -ETIMEDOUT); /* nobody answers */
	assert_int_equal(open_descriptors(), before);
	close(accept(sock, NULL, NULL));
	o.timeout_ns = 10 * TN_TEST_SECOND;
	assert_int_equal(pthread_create(&thread, NULL, answer_short, &sock), 0);
	assert_true(tn_heap_create(heap_name, 2, 1, &o, &heap) < 0);
	pthread_join(thread, NULL);
	assert_int_equal(open_descriptors(), before);
	close(bystander);
	end_false_master(sock);
}

static void a_join_does_not_wait_longer_for_a_master_that_accepts_nobody(void **state)
{
	struct tn_heap_opts o = heap_opts(4);
	int sock, waiting[8], connected = 0;
	struct tn_heap *heap;

	heap_new_name();
	sock = false_master(0);
	do
		waiting[connected] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
	while (connect_to_master(waiting[connected++]) == 0);
	alarm(30);
	o.timeout_ns = 100; /* less than the kernel's clock counts */
	assert_int_equal(tn_heap_create(heap_name, 2, 1, &o, &heap), -ETIMEDOUT);
	o.timeout_ns = TN_TEST_SECOND / 20;
	assert_int_equal(tn_heap_create(heap_name, 2, 1, &o, &heap), -ETIMEDOUT);
	alarm(0);
	while (connected)
		close(waiting[--connected]);
	end_false_master(sock);
}

/* Rank 0 of two, until it is killed. */
static int lead(void *arg)
{
	struct tn_heap_opts o = heap_opts(8);
	struct tn_heap *heap = heap_open(2, 0, &o);
	uint64_t key = 1, word = 2;

	assert_int_equal(tn_heap_put(heap, &key, 8, &word, 8, 0, 0), 0);
	pause();
	return 0;
}

static void a_dead_master_comes_back_under_its_rank(void **state)
{
	struct tn_heap_opts o = heap_opts(8);
	struct tn_heap *heap, *back;
	uint64_t key = 1, word, bytes;
	pid_t master;

	heap_new_name();
	master = heap_process(lead, NULL);
	heap = heap_open(2, 1, NULL);
	heap_wait_until(tn_heap_get(heap, &key, 8, &word, 8, &bytes) == 0);
	heap_kill(master);
	assert_int_equal(tn_heap_take_over(heap), 0);
	back = heap_open(2, 0, &o); /* as it was started the first time */
	assert_int_equal(tn_heap_get(back, &key, 8, &word, 8, &bytes), 0);
	assert_int_equal(word, 2);
	assert_int_equal(tn_heap_remove(back, &key, 8), 0);
	tn_heap_destroy(back);
	tn_heap_destroy(heap);
}

static void a_rank_gets_no_plan_of_another_heap_of_the_name(void **state)
{
	struct tn_heap *old, *new;
	struct tn_heap_plan plan;
	uint64_t key = 1, mine = 5, word, bytes;
	pid_t master;

	heap_new_name();
	master = heap_process(lead, NULL);
	old = heap_open(2, 1, NULL);
	heap_wait_until(tn_heap_get(old, &key, 8, &word, 8, &bytes) == 0);
	heap_kill(master);
	master = heap_process(lead, NULL); /* before anybody takes over: it makes a heap */
	new = heap_open(2, 1, NULL);
	assert_int_equal(tn_heap_open_for_write(old, &mine, 8, 8, 1, 0, &plan), -ESTALE);
	assert_int_equal(tn_heap_remove(old, &key, 8), -ESTALE);
	assert_int_equal(tn_heap_get(old, &key, 8, &word, 8, &bytes), 0);
	assert_int_equal(tn_heap_open_for_write(new, &mine, 8, 8, 1, 0, &plan), 0);
	tn_heap_destroy(old);
	tn_heap_destroy(new);
	heap_kill(master);
}

static void a_join_that_fails_late_leaves_the_rank_free(void **state)
{
	struct rlimit few, usual;
	struct tn_heap *heap;
	int rc, unused[2];
	pid_t master;

	heap_new_name();
	master = heap_process(lead, NULL);
	heap = heap_open(2, 1, NULL); /* the master is there */
	tn_heap_destroy(heap);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
	few = usual;
	for (uint32_t i = 0; i < 2; i++)
		unused[i] = dup(0);
	few.rlim_cur = (rlim_t)unused[1] + 1; /* the directory and the socket, but not what the master sends */
	for (uint32_t i = 0; i < 2; i++)
		close(unused[i]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	rc = tn_heap_create(heap_name, 2, 1, NULL, &heap);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
	assert_int_equal(rc, -EINVAL);
	heap = heap_open(2, 1, NULL);
	tn_heap_destroy(heap);
	heap_kill(master);
}

/* As if the number of the process had been another's when it connected. */
static void a_join_counts_only_if_it_comes_from_the_process_that_connected(void **state)
{
	struct tn_heap_ask ask = {.magic = TN_HEAP_WIRE_MAGIC, .op = TN_HEAP_JOIN, .ranks = 2, .rank = 1};
	struct tn_heap_told told;
	struct tn_heap *heap;
	pid_t master;
	int sock;

	heap_new_name();
	master = heap_process(lead, NULL);
	heap = heap_open(2, 1, NULL);
	tn_heap_destroy(heap);
	sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	assert_int_equal(connect_to_master(sock), 0);
	assert_int_equal(tn_heap_process_start(getpid(), &ask.start), 0);
	ask.start++;
	assert_int_equal(send(sock, &ask, sizeof(ask), 0), sizeof(ask));
	assert_int_equal(recv(sock, &told, sizeof(told), 0), sizeof(told));
	assert_int_equal(told.status, -ESRCH);
	ask.op = TN_HEAP_EVICT; /* nor any other request */
	ask.percent = 100;
	assert_int_equal(send(sock, &ask, sizeof(ask), 0), sizeof(ask));
	assert_int_equal(recv(sock, &told, sizeof(told), 0), sizeof(told));
	assert_true(told.status < 0);
	close(sock);
	heap_kill(master);
}

static void nobody_else_can_take_a_name_or_connect_to_it(void **state)
{
	struct tn_heap_opts o = heap_opts(4);
	char parent[] = "/tmp/tn-heap-XXXXXX", path[128];
	struct tn_heap *heap;
	struct stat st;

	heap_new_name();
	assert_non_null(mkdtemp(parent));
	snprintf(path, sizeof(path), "%s/tenuto-heap-%u", parent, (unsigned)geteuid());
	setenv("XDG_RUNTIME_DIR", parent, 1);
	heap = heap_open(1, 0, &o);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	tn_heap_destroy(heap);
	assert_int_equal(chmod(path, 0777), 0);
	assert_int_equal(tn_heap_create(heap_name, 1, 0, &o, &heap), -EACCES);
	assert_int_equal(chmod(path, 0700), 0);
	if (geteuid() == 0) {
		assert_int_equal(chown(path, 65534, 65534), 0);
		assert_int_equal(tn_heap_create(heap_name, 1, 0, &o, &heap), -EACCES);
	}
	assert_int_equal(rmdir(path), 0); /* nothing was left in it */
	assert_int_equal(symlink("/tmp", path), 0);
	assert_true(tn_heap_create(heap_name, 1, 0, &o, &heap) < 0);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(parent), 0);
	setenv("XDG_RUNTIME_DIR", heap_directory, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_join_that_fails_closes_what_it_was_sent_and_nothing_else),
		cmocka_unit_test(a_join_does_not_wait_longer_for_a_master_that_accepts_nobody),
		cmocka_unit_test(a_dead_master_comes_back_under_its_rank),
		cmocka_unit_test(a_rank_gets_no_plan_of_another_heap_of_the_name),
		cmocka_unit_test(a_join_that_fails_late_leaves_the_rank_free),
		cmocka_unit_test(a_join_counts_only_if_it_comes_from_the_process_that_connected),
		cmocka_unit_test(nobody_else_can_take_a_name_or_connect_to_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
