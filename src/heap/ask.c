/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's end of the socket: joining, and requests to the master. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "heap/heap_internal.h"

#define MS 1000000ull
#define RETRY_NS (5 * MS) /* between two attempts to reach a master that is not there yet */

static int fail_silent(const struct tn_heap *heap)
{
	return tn_fail(-ETIMEDOUT, "the master of heap %s has not answered for %llu ms: is it stopped?", heap->name,
		       (unsigned long long)(heap->timeout_ns / MS));
}

void tn_heap_hang_up(struct tn_heap *heap)
{
	tn_fork_unwatch(&heap->forked);
	if (heap->sock >= 0)
		close(heap->sock);
	heap->sock = -1;
	heap->forked = (struct tn_fork_fd){0};
}

static int make_socket(struct tn_heap *heap)
{
	int rc;

	tn_fork_lock();
	heap->sock = tn_above_streams(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
	rc = heap->sock < 0 ? -errno : 0;
	if (rc == 0)
		tn_fork_watch(&heap->forked, heap->sock);
	tn_fork_unlock();
	return rc;
}

/* A socket to the master, whose connect and sends wait for timeout_ns at most. */
static int connect_once(struct tn_heap *heap)
{
	const uint64_t us = heap->timeout_ns / 1000 ? heap->timeout_ns / 1000 : 1; /* 0 would be for ever */
	const struct timeval t = {(time_t)(us / 1000000), (suseconds_t)(us % 1000000)};
	struct sockaddr_un address;
	int directory, rc = tn_heap_directory_open(&directory);
	socklen_t len;
	pid_t pid;

	if (rc)
		return rc;
	len = tn_heap_address(directory, heap->name, &address);
	rc = make_socket(heap);
	setsockopt(heap->sock, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
	while (rc == 0 && connect(heap->sock, (struct sockaddr *)&address, len)) {
		if (errno == EINTR)
			continue;
		rc = -errno;
	}
	close(directory);
	rc = rc == -EAGAIN ? fail_silent(heap)
	     : rc == -ECONNREFUSED || rc == -ENOENT
		     ? tn_fail(-ESHUTDOWN, "heap %s has no master: tn_heap_take_over makes this rank the master", heap->name)
	     : rc ? tn_fail(rc, "heap %s: %s", heap->name, strerror(-rc))
		  : tn_heap_peer(heap->sock, &pid);
	if (rc)
		tn_heap_hang_up(heap);
	return rc;
}

/* Closes what is more than @most. Returns how many there are in @fds. */
static uint32_t take_descriptors(struct msghdr *m, int *fds, uint32_t most)
{
	uint32_t n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c))
		for (size_t at = 0; c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && at + CMSG_LEN(sizeof(int)) <= c->cmsg_len;
		     at += sizeof(int)) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + at, sizeof(fd));
			if (n < most)
				fds[n++] = tn_above_streams(fd);
			else
				close(fd);
		}
	return n;
}

/* Until there is an answer to read, or the connection has ended. 0, -ETIMEDOUT. */
static int wait_for_answer(int sock, uint64_t deadline_ns)
{
	struct pollfd p = {.fd = sock, .events = POLLIN};
	int ready;

	do {
		uint64_t now = tn_now_ns(&tn_clock_system), left = deadline_ns > now ? (deadline_ns - now + MS - 1) / MS : 0;

		ready = poll(&p, 1, (int)(left < 60000 ? left : 60000));
	} while ((ready < 0 && errno == EINTR) || (ready == 0 && tn_now_ns(&tn_clock_system) < deadline_ns));
	return ready > 0 ? 0 : -ETIMEDOUT;
}

/* As recvmsg. An answer often comes sooner than a sleeping thread would wake up: so first this looks, and lets others have the CPU between two looks. */
static ssize_t receive_soon(int sock, struct msghdr *m)
{
	uint64_t until = tn_now_ns(&tn_clock_system) + TN_HEAP_SPIN_NS;
	ssize_t got;

	while ((got = recvmsg(sock, m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT)) < 0 && errno == EAGAIN && tn_now_ns(&tn_clock_system) < until)
		sched_yield();
	return got;
}

/* The answer, with up to *nfds descriptors; *nfds becomes how many came, also if it fails. 0, -ETIMEDOUT, -ESHUTDOWN. */
static int receive(int sock, uint64_t deadline_ns, struct tn_heap_told *told, int *fds, uint32_t *nfds)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(TN_HEAP_FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = {told, sizeof(*told)};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = *nfds ? &control : NULL, .msg_controllen = *nfds ? sizeof(control) : 0};
	uint32_t most = *nfds;
	ssize_t got;
	int rc;

	*nfds = 0;
	got = receive_soon(sock, &m);
	if (got < 0 && errno == EAGAIN) {
		rc = wait_for_answer(sock, deadline_ns);
		if (rc)
			return rc;
		got = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	}
	if (got < 0)
		return -ESHUTDOWN;
	*nfds = take_descriptors(&m, fds, most);
	return got >= (ssize_t)offsetof(struct tn_heap_told, text) && got == (ssize_t)tn_heap_told_bytes(told) && told->magic == TN_HEAP_WIRE_MAGIC
		       ? 0 : -ESHUTDOWN;
}

/* One request on an open socket. A socket that has failed is closed. */
static int exchange(struct tn_heap *heap, struct tn_heap_ask *ask, struct tn_heap_told *told, int *fds, uint32_t *nfds)
{
	uint64_t deadline = tn_now_ns(&tn_clock_system) + heap->timeout_ns;
	int rc = 0;

	ask->magic = TN_HEAP_WIRE_MAGIC;
	ask->ranks = heap->ranks;
	ask->rank = heap->rank;
	ask->id = heap->memory.id;
	ask->start = heap->start;
	if (send(heap->sock, ask, sizeof(*ask), MSG_NOSIGNAL) < 0)
		rc = errno == EAGAIN ? -ETIMEDOUT : -ESHUTDOWN;
	if (rc == 0)
		rc = receive(heap->sock, deadline, told, fds, nfds);
	if (rc)
		tn_heap_hang_up(heap);
	if (rc == -ETIMEDOUT)
		return fail_silent(heap);
	return rc ? tn_fail(rc, "the master of heap %s is gone: tn_heap_take_over makes this rank the master", heap->name) : 0;
}

static int answer_of(const struct tn_heap_told *told)
{
	return told->status ? tn_fail(told->status, "%.250s", told->text) : 0;
}

/* Maps the memory, then makes the life that the master has begun ALIVE. Until then it is the master that ends it, when the socket is closed. */
static int enter(struct tn_heap *heap, const struct tn_heap_rights *rights, const int *fds)
{
	int rc = tn_heap_memory_map(heap->ranks, heap->device.driver != NULL, rights, fds, &heap->memory);

	if (rc == 0 && heap->device.driver)
		rc = tn_heap_on_device_map(&heap->device, &heap->memory);
	if (rc)
		return rc;
	if (!tn_heap_life_move(&heap->memory, heap->rank, getpid(), TN_HEAP_JOINING, TN_HEAP_ALIVE)) {
		tn_heap_memory_drop(&heap->memory);
		rc = tn_fail(-ETIMEDOUT, "heap %s: another rank became the master while this one joined; try again", heap->name);
	}
	return rc;
}

/* Between two attempts to join. False: it is too late for another one. */
static bool wait_to_retry(uint64_t deadline_ns)
{
	if (tn_now_ns(&tn_clock_system) >= deadline_ns)
		return false;
	nanosleep(&(struct timespec){.tv_nsec = (long)RETRY_NS}, NULL);
	return true;
}

/* Asks the master to let this rank in. Waits for a master, which need not be there yet, and until it can pass descriptors on. */
static int ask_to_join(struct tn_heap *heap, struct tn_heap_told *told, int fds[TN_HEAP_FDS_MAX], uint32_t *nfds)
{
	uint64_t deadline = tn_now_ns(&tn_clock_system) + heap->timeout_ns;
	struct tn_heap_ask ask = {.op = TN_HEAP_JOIN, .token = heap->token};
	int rc;

	do {
		tn_heap_hang_up(heap);
		*nfds = 0;
		do
			rc = connect_once(heap);
		while (rc == -ESHUTDOWN && wait_to_retry(deadline));
		if (rc)
			return rc == -ESHUTDOWN ? tn_fail(-ETIMEDOUT, "heap %s: no master has come for %llu ms; start the rank that is to be it", heap->name,
							  (unsigned long long)(heap->timeout_ns / MS))
						: rc;
		*nfds = TN_HEAP_FDS_MAX;
		rc = exchange(heap, &ask, told, fds, nfds);
		if (rc == 0)
			rc = answer_of(told);
	} while (rc == -ETOOMANYREFS && wait_to_retry(deadline));
	return rc;
}

int tn_heap_join(struct tn_heap *heap)
{
	struct tn_heap_told told;
	int fds[TN_HEAP_FDS_MAX];
	uint32_t nfds, wanted;
	int rc = ask_to_join(heap, &told, fds, &nfds);

	if (rc == 0 && ((told.rights.read | told.rights.write) & ~tn_heap_all_rights(heap->ranks).read))
		rc = tn_fail(-EINVAL, "the heap's master tells of rights to ranks that are not there");
	wanted = tn_heap_fds_of(heap->ranks, heap->device.driver != NULL, &told.rights);
	if (rc == 0 && nfds != wanted)
		rc = tn_fail(-EINVAL, "the heap's master has sent %u descriptors, %u are expected: all ranks name a driver of devices, or none does", nfds, wanted);
	if (rc == 0)
		return enter(heap, &told.rights, fds);
	for (uint32_t i = 0; i < nfds; i++)
		close(fds[i]);
	return rc;
}

/* A socket that the last master has left is found out only by using it: once more with a new one. */
static int ask_master(struct tn_heap *heap, struct tn_heap_ask *ask, struct tn_heap_told *told)
{
	bool fresh = heap->sock < 0;
	uint32_t nfds = 0;
	int rc = fresh ? connect_once(heap) : 0;

	if (rc == 0)
		rc = exchange(heap, ask, told, NULL, &nfds);
	if (rc == -ESHUTDOWN && !fresh) {
		rc = connect_once(heap);
		if (rc == 0)
			rc = exchange(heap, ask, told, NULL, &nfds);
	}
	return rc;
}

int tn_heap_request(struct tn_heap *heap, struct tn_heap_ask *ask, struct tn_heap_told *told)
{
	int rc = 0;

	pthread_mutex_lock(&heap->lock);
	if (heap->server) {
		ask->rank = heap->rank;
		tn_heap_answer(heap->server, ask, told);
	} else {
		rc = ask_master(heap, ask, told);
	}
	pthread_mutex_unlock(&heap->lock);
	if (rc)
		tn_heap_count(&heap->memory, heap->rank, rc == -ETIMEDOUT ? TN_HEAP_TIMEOUTS : TN_HEAP_FAILURES, 1);
	return rc ? rc : answer_of(told);
}
