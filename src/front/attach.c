/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attaching: the handshake, the region, messages, and a thread that watches whether the owner's process lives.
 *
 * What waits here waits for the owner's process, and ends by a deadline or when that process does. An owner that closes says so on the socket
 * first (no more answers), and closes the socket once nothing of the session is under way; one that dies is seen by a pidfd. The thread
 * marks the region as gone at the first sign and wakes who sleeps; at the second it raises the event words.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/futex.h"
#include "base/proc.h"
#include "base/thread.h"
#include "front/attach.h"
#include "front/calls.h"
#include "front/stage.h"

#define MS 1000000ull
#define FIRST_PID_NAMESPACE 0xEFFFFFFCu /* inode of the first one (PROC_PID_INIT_INO of the kernel) */

struct tn_attached {
	int sock, stop; /* stop: eventfd that ends the threads */
	int owner;	/* pidfd of the owner, readable once it is dead; -1: the kernel does not give one */
	pid_t owner_pid;
	pthread_t watcher;
	bool watches;
	pthread_mutex_t messages; /* of messages on the socket, and of turn */
	uint32_t turn;		  /* of the last message */
	pthread_mutex_t lock;	  /* of what follows, and of raising event words of a dead owner */
	pthread_t listener;
	bool listens;
	uint32_t stopping; /* shared */
	uint32_t landed; /* shared */
	struct tn_calls calls;
	uint32_t nlocks;
	char lock_path[TN_DEVICES_MAX][TN_WIRE_PATH];
};

/* ---- the socket ----------------------------------------------------------------------------------------------- */

static int wait_for(int fd, short events, uint64_t deadline_ns)
{
	struct pollfd p = {.fd = fd, .events = events};

	for (;;) {
		uint64_t now = tn_now_ns(&tn_clock_system), left;
		int n;

		left = deadline_ns > now ? (deadline_ns - now + MS - 1) / MS : 0;
		n = poll(&p, 1, deadline_ns == TN_FOREVER ? -1 : (int)(left < 60000 ? left : 60000));
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n == 0 && now >= deadline_ns)
			return -ETIMEDOUT;
	}
}

/* What a stopped owner does not take ends by then: connecting, when its queue is full, and sending. */
static void send_until(int fd, uint64_t deadline_ns)
{
	uint64_t now = tn_now_ns(&tn_clock_system), left = deadline_ns > now + 1000 ? deadline_ns - now : 1000;
	const struct timeval t = {(time_t)(left / 1000000000u), (suseconds_t)(left % 1000000000u / 1000)};

	if (deadline_ns != TN_FOREVER)
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
}

static int connect_to(const char *path, uint64_t deadline_ns, int *out)
{
	struct sockaddr_un address;
	struct stat st;
	int fd, rc;

	rc = tn_wire_address(path, &address);
	if (rc)
		return rc;
	fd = tn_above_streams(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
	if (fd < 0)
		return tn_fail(-errno, "socket: %s", strerror(errno));
	send_until(fd, deadline_ns);
	do
		rc = connect(fd, (struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
	while (rc == -EINTR);
	if (rc == 0 && tn_peer_is_dead(fd))
		rc = -ECONNREFUSED; /* a forked child of the owner keeps its socket */
	if (rc == 0) {
		*out = fd;
		return 0;
	}
	rc = rc == -EPROTOTYPE ? -EPROTONOSUPPORT : rc == -EAGAIN ? -ETIMEDOUT : rc;
	close(fd);
	return tn_fail(rc, "%s: %s", path, rc == -EPROTONOSUPPORT ? "a socket of another program"
			: rc == -ECONNREFUSED && stat(path, &st) == 0 && !S_ISSOCK(st.st_mode)
				? "not a socket (by a store's directory attaches tn_cache_attach_store, in Python attach_store)"
			: rc == -EACCES ? "this user may not connect: run as the owner's user, or have the owner give a rule for this one"
			: rc == -ECONNREFUSED ? "nobody serves a cache there any more; start its owner"
			: rc == -ETIMEDOUT ? "its owner takes no connection: is it stopped?"
			: strerror(-rc));
}

/* One message with at most so many descriptors, those that do not come are -1. Bytes, 0 at the end, or -errno. */
static ssize_t receive(int sock, void *message, size_t bytes, int *fds, uint32_t nfds)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(TN_WELCOME_FDS * sizeof(int))];
	} control;
	struct iovec iov = {message, bytes};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	uint32_t got = 0;
	ssize_t n;

	do
		n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	for (uint32_t i = 0; i < nfds; i++)
		fds[i] = -1;
	if (n < 0)
		return -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = 0; at + CMSG_LEN(sizeof(int)) <= c->cmsg_len; at += sizeof(int)) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + at, sizeof(fd));
			if (got < nfds)
				fds[got++] = tn_above_streams(fd);
			else
				close(fd);
		}
	}
	return n;
}

static int send_message(int sock, const void *message, size_t bytes, const int *fds, uint32_t nfds)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(TN_WIRE_RANGES_MAX * sizeof(int))];
	} control;
	struct iovec iov = {(void *)(uintptr_t)message, bytes};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	memset(&control, 0, sizeof(control));
	if (nfds) {
		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		control.head = (struct cmsghdr){CMSG_LEN(nfds * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.head), fds, nfds * sizeof(int));
	}
	do
		n = sendmsg(sock, &m, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

static int gone(void)
{
	return tn_fail(-ESHUTDOWN, "the process that owns the cache is gone, or has closed it; close this one and attach again");
}

/* The answer of the message of that turn. Answers to those before, which came too late, have registered what nobody wants. */
static int wait_for_answer(struct tn_attached *a, uint32_t turn, uint64_t deadline_ns, struct tn_wire_registered *answer)
{
	for (;;) {
		int rc = wait_for(a->sock, POLLIN, deadline_ns);

		if (rc)
			return rc;
		if (receive(a->sock, answer, sizeof(*answer), NULL, 0) != (ssize_t)sizeof(*answer))
			return -ESHUTDOWN;
		if (answer->turn == turn)
			return 0;
		if (answer->status == 0)
			tn_calls_forget_memory(&a->calls, answer->number);
	}
}

int tn_attached_memory(struct tn_cache *cache, struct tn_wire_memory *w, const int *fds, struct tn_wire_registered *answer)
{
	struct tn_attached *a = cache->attached;
	uint64_t deadline = tn_now_ns(&tn_clock_system) + a->calls.answer_ns;
	int rc;

	pthread_mutex_lock(&a->messages);
	w->turn = ++a->turn;
	send_until(a->sock, deadline);
	rc = tn_region_is_gone(&cache->region) ? -ESHUTDOWN : send_message(a->sock, w, sizeof(*w), fds, w->nranges);
	if (rc == 0)
		rc = wait_for_answer(a, w->turn, deadline, answer);
	pthread_mutex_unlock(&a->messages);
	if (rc == -ETIMEDOUT || rc == -EAGAIN)
		return tn_fail(-ETIMEDOUT, "the process that owns the cache has not answered for %llu ms: is it stopped?",
			       (unsigned long long)(a->calls.answer_ns / MS));
	return rc ? gone() : 0;
}

void tn_attached_forget_memory(struct tn_cache *cache, uint32_t number)
{
	tn_calls_forget_memory(&cache->attached->calls, number);
}

int tn_attached_call_until(struct tn_cache *cache, enum tn_wire_call kind, uint64_t deadline_ns, const struct iovec *in, int nin,
			   const struct iovec *out, int nout)
{
	int rc = tn_calls_ask(&cache->attached->calls, kind, deadline_ns, in, nin, out, nout);

	return rc == -ESHUTDOWN ? gone() : rc;
}

int tn_attached_call(struct tn_cache *cache, enum tn_wire_call kind, const struct iovec *in, int nin, const struct iovec *out, int nout)
{
	return tn_attached_call_until(cache, kind, 0, in, nin, out, nout);
}

void tn_attached_answer_within(struct tn_cache *cache, uint64_t ns)
{
	cache->attached->calls.answer_ns = ns;
}

/* ---- the owner's end --------------------------------------------------------------------------------------- */

/* Whoever sleeps here goes on, and finds that the region is gone. */
static void wake_all(struct tn_cache *cache)
{
	const struct tn_region *r = &cache->region;

	__atomic_store_n(&cache->region.gone, TN_REGION_GONE, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < r->counts.ops; i++) {
		uint32_t *progress = &tn_face_told(r, i)->progress;

		__atomic_add_fetch(progress, 1, __ATOMIC_SEQ_CST);
		tn_futex_wake_on(progress, true);
	}
	for (uint32_t i = 0; i < r->counts.calls; i++) {
		__atomic_add_fetch(&tn_call_told(r, i)->turn, 1, __ATOMIC_SEQ_CST);
		tn_futex_wake_on(&tn_call_told(r, i)->turn, true);
	}
	tn_region_tell_completed(r);
}

/*
 * Nobody else writes the region any more: who waits for an event word without a call - a stream, say - goes on, and finds no good block. The region
 * is marked first: the words of a load that begins too late to be seen here are raised by whoever has begun it, who looks at the mark afterwards.
 */
void tn_attached_raise(struct tn_cache *cache)
{
	const struct tn_region *r = &cache->region;

	pthread_mutex_lock(&cache->attached->lock);
	__atomic_store_n(&cache->region.gone, TN_REGION_DEAD, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < r->counts.ops; i++) {
		uint64_t generation = tn_front_generation(&cache->front->ops[i]);

		tn_face_tell_good(r, i, 0);
		for (uint32_t c = 0; c < r->counts.chunks; c++)
			if (__atomic_load_n(&tn_face_ready(r, i)[c], __ATOMIC_RELAXED) < generation)
				tn_face_tell_ready(r, i, c, generation);
	}
	pthread_mutex_unlock(&cache->attached->lock);
}

/* A closing owner lets go of the session in two steps: it answers no more, then nothing of the session is under way. */
static void *watch(void *arg)
{
	struct tn_cache *cache = arg;
	struct tn_attached *a = cache->attached;
	struct pollfd p[] = {{.fd = a->stop, .events = POLLIN}, {.fd = a->sock, .events = POLLRDHUP}, {.fd = a->owner, .events = POLLIN}};

	pthread_setname_np(pthread_self(), "tenuto-watch");
	while (poll(p, 3, -1) < 0)
		;
	if (p[0].revents)
		return NULL;
	wake_all(cache);
	p[1].events = 0; /* both ends are closed */
	while (poll(p, 3, -1) < 0)
		;
	if (!p[0].revents)
		tn_attached_raise(cache);
	return NULL;
}

/* Who has a file locked, as far as this process can see. */
struct holders {
	bool owner; /* the dead one */
	bool other; /* another process, which has got the lock since */
};

/* False: nothing can be seen. */
static bool see_holders(const struct tn_attached *a, const struct stat *st, struct holders *h)
{
	FILE *f = fopen("/proc/locks", "re");
	char line[256], kind[16];
	unsigned long long inode;
	unsigned major, minor;
	int pid;

	if (!f)
		return false;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%*s %15s %*s %*s %d %x:%x:%llu", kind, &pid, &major, &minor, &inode) != 5 || strcmp(kind, "FLOCK") != 0 ||
		    inode != st->st_ino)
			continue;
		h->owner |= pid == a->owner_pid;
		/* Some file systems have another device here than in stat: then nothing is known of other processes. */
		h->other |= pid != a->owner_pid && makedev(major, minor) == st->st_dev;
	}
	fclose(f);
	return true;
}

/* Linux tells of locks of a process that is dead and reaped in the first PID namespace only. */
static bool sees_the_dead(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) == 0 && st.st_ino == FIRST_PID_NAMESPACE;
}

static bool is_free(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool got = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) == 0; /* a next owner that opens just now tries again */

	if (fd >= 0)
		close(fd);
	return got;
}

/* Whether the dead owner has the file locked, or may have. A lock is held until all that was begun through the file has ended. */
static bool owner_has(const struct tn_attached *a, const char *path)
{
	struct holders h = {false, false};
	struct stat st;

	if (a->owner_pid <= 0 || stat(path, &st) || !see_holders(a, &st, &h))
		return true; /* who cannot know must not give pages back */
	return h.owner || (!h.other && !sees_the_dead() && !is_free(path));
}

bool tn_attached_owns(const struct tn_cache *cache, const char *path)
{
	const struct tn_attached *a = cache->attached;
	struct stat st, its;
	bool owns = false;

	for (uint32_t i = 0; i < a->nlocks && stat(path, &st) == 0; i++)
		owns |= stat(a->lock_path[i], &its) == 0 && its.st_dev == st.st_dev && its.st_ino == st.st_ino;
	return owns;
}

/* An owner that lets go of the session says that nothing of it is under way. One that dies leaves that to the kernel. */
static bool has_landed(const struct tn_cache *cache)
{
	const struct tn_attached *a = cache->attached;
	struct pollfd p = {.fd = a->owner >= 0 ? a->owner : a->sock, .events = a->owner >= 0 ? POLLIN : 0};

	if (__atomic_load_n(&tn_region_core(&cache->region)->let_go, __ATOMIC_ACQUIRE))
		return true;
	if (poll(&p, 1, 0) <= 0)
		return false;
	for (uint32_t i = 0; i < a->nlocks; i++)
		if (owner_has(a, a->lock_path[i]))
			return false;
	return true;
}

bool tn_attached_landed(struct tn_cache *cache)
{
	struct tn_attached *a = cache->attached;

	if (!a || !tn_region_is_gone(&cache->region))
		return false;
	if (__atomic_load_n(&a->landed, __ATOMIC_ACQUIRE))
		return true;
	if (!has_landed(cache))
		return false;
	__atomic_store_n(&a->landed, 1, __ATOMIC_RELEASE);
	return true;
}

/* ---- completions ------------------------------------------------------------------------------------------- */

/* The owner's process writes no descriptor that this one has: a thread of ours makes the descriptor readable. */
static void *listen_for(void *arg)
{
	struct tn_cache *cache = arg;
	uint32_t *completed = &tn_region_core(&cache->region)->completed;
	uint64_t one = 1;

	pthread_setname_np(pthread_self(), "tenuto-listen");
	for (;;) {
		uint32_t seen = __atomic_load_n(completed, __ATOMIC_SEQ_CST);

		/* Looked at after the word: whoever stops us raises it afterwards. */
		if (__atomic_load_n(&cache->attached->stopping, __ATOMIC_SEQ_CST) || __atomic_load_n(&cache->stage, __ATOMIC_SEQ_CST))
			break;
		(void)!write(cache->eventfd, &one, sizeof(one)); /* full: the reader is signalled anyway */
		tn_futex_wait_on(completed, seen, TN_FOREVER, true);
	}
	return NULL;
}

static int start_thread(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
	int rc = tn_thread_start(thread, run, arg);

	return rc ? tn_fail(-rc, "cannot start a thread (errno %d)", rc) : 0;
}

int tn_attached_eventfd(struct tn_cache *cache)
{
	struct tn_attached *a = cache->attached;
	uint64_t one = 1;
	int rc = 0;

	/* What ended before anybody listened counts as one; a thread of stage.c, where there is one, writes what comes. */
	if (!__atomic_exchange_n(&cache->eventfd_used, 1, __ATOMIC_SEQ_CST))
		(void)!write(cache->eventfd, &one, sizeof(one));
	pthread_mutex_lock(&a->lock);
	if (!a->listens) {
		__atomic_store_n(&tn_region_front(&cache->region)->listens, 1, __ATOMIC_SEQ_CST);
		rc = start_thread(&a->listener, listen_for, cache);
		a->listens = rc == 0;
	}
	pthread_mutex_unlock(&a->lock);
	return rc ? rc : cache->eventfd;
}

/* ---- attach and detach ------------------------------------------------------------------------------------- */

void tn_attached_stop(struct tn_cache *cache)
{
	struct tn_attached *a = cache->attached;
	uint64_t one = 1;

	__atomic_store_n(&a->stopping, 1, __ATOMIC_SEQ_CST);
	(void)!write(a->stop, &one, sizeof(one));
	if (a->watches)
		pthread_join(a->watcher, NULL);
	if (a->listens) {
		tn_region_tell_completed(&cache->region);
		pthread_join(a->listener, NULL);
	}
	tn_stage_stop(cache);
}

void tn_detach(struct tn_cache *cache)
{
	struct tn_attached *a = cache->attached;

	tn_front_destroy(cache);
	for (uint32_t i = 0; i < TN_SPACES_MAX; i++)
		tn_put(cache->alloc, cache->spaces[i], sizeof(struct tn_space));
	if (cache->region.base)
		munmap(cache->region.base, cache->region.bytes);
	if (a->sock >= 0) {
		shutdown(a->sock, SHUT_RDWR); /* forked children may have the socket, too */
		close(a->sock);
	}
	if (a->owner >= 0)
		close(a->owner);
	if (a->stop >= 0)
		close(a->stop);
	if (cache->eventfd >= 0)
		close(cache->eventfd);
	tn_copiers_fini(&cache->copiers);
	tn_calls_destroy(&a->calls);
	pthread_mutex_destroy(&a->messages);
	pthread_mutex_destroy(&a->lock);
	pthread_mutex_destroy(&cache->lock);
	tn_put(cache->alloc, a, sizeof(*a));
	tn_put(cache->alloc, cache, sizeof(*cache));
}

static int create(struct tn_cache **out)
{
	const struct tn_alloc *alloc = &tn_alloc_system;
	struct tn_cache *cache = tn_get(alloc, sizeof(*cache));
	struct tn_attached *a = tn_get(alloc, sizeof(*a));

	if (!cache || !a) {
		tn_put(alloc, cache, sizeof(*cache));
		tn_put(alloc, a, sizeof(*a));
		return tn_fail(-ENOMEM, "tn_cache_attach: no memory");
	}
	cache->alloc = alloc;
	cache->attached = a;
	cache->clock = tn_clock_system;
	cache->save_idle_ns = TN_SAVE_IDLE_NS;
	tn_copiers_init(&cache->copiers, alloc, &cache->log, &cache->clock);
	tn_list_init(&cache->memories);
	cache->messages = (struct tn_messages){.opener = getpid(), .opener_mark = tn_process_mark(), .cache = cache};
	pthread_mutex_init(&cache->lock, NULL);
	pthread_mutex_init(&a->lock, NULL);
	pthread_mutex_init(&a->messages, NULL);
	tn_calls_init(&a->calls, &cache->region);
	a->sock = a->owner = -1;
	a->stop = tn_above_streams(eventfd(0, EFD_CLOEXEC));
	cache->eventfd = tn_above_streams(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	*out = cache;
	return a->stop < 0 || cache->eventfd < 0 ? tn_fail(-errno, "eventfd: %s", strerror(errno)) : 0;
}

/* Greets the owner, which sends a welcome and the region. */
static int greet(const struct tn_attached *a, const char *path, const struct tn_attach_opts *o, struct tn_wire_welcome *w, int fds[TN_WELCOME_FDS])
{
	struct tn_wire_hello hello = {.magic = TN_WIRE_MAGIC, .page_bytes = (uint32_t)sysconf(_SC_PAGESIZE),
				      .command_bytes = sizeof(struct tn_command)};
	ssize_t n;
	int rc;

	snprintf(hello.version, sizeof(hello.version), "%s", tn_version());
	memcpy(hello.token, o->token ? o->token : "", o->token ? strlen(o->token) : 0);
	/* An owner that refuses says so and closes, maybe before it has read this: its message is there all the same. */
	rc = send_message(a->sock, &hello, sizeof(hello), NULL, 0);
	if (rc == 0 || rc == -EPIPE || rc == -ECONNRESET)
		rc = wait_for(a->sock, POLLIN, o->deadline_ns);
	if (rc)
		return tn_fail(rc, "%s: no answer from the cache's owner: %s", path, strerror(-rc));
	n = receive(a->sock, w, sizeof(*w), fds, TN_WELCOME_FDS);
	if (n == -ECONNRESET)
		n = receive(a->sock, w, sizeof(*w), fds, TN_WELCOME_FDS);
	if (n == 0 || n == -ECONNRESET)
		return tn_fail(-ECONNREFUSED, "%s: the cache's owner has closed it meanwhile, or is gone", path);
	if (n != (ssize_t)sizeof(*w) || w->magic != TN_WIRE_MAGIC)
		return tn_fail(-EPROTONOSUPPORT, "%s: not a cache of Tenuto (%zd bytes came)", path, n);
	if (w->status)
		return tn_fail(w->status, "%s: %.250s", path, w->text);
	return fds[0] >= 0 ? 0 : tn_fail(-EPROTONOSUPPORT, "%s: the owner has sent no region", path);
}

static int map_region(struct tn_cache *cache, const struct tn_wire_welcome *w, int fd)
{
	void *base = mmap(NULL, w->region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int rc;

	if (base == MAP_FAILED)
		return tn_fail(-errno, "cannot map the region of %llu bytes: %s", (unsigned long long)w->region_bytes, strerror(errno));
	madvise(base, w->region_bytes, MADV_DONTFORK);
	rc = tn_region_attach(base, w->region_bytes, true, &cache->region);
	if (rc)
		munmap(base, w->region_bytes);
	return rc;
}

static int join(struct tn_cache *cache, const char *path, const struct tn_attach_opts *o)
{
	struct tn_attached *a = cache->attached;
	socklen_t len = sizeof(struct ucred);
	struct tn_wire_welcome w;
	struct ucred peer;
	int fds[TN_WELCOME_FDS] = {-1, -1}, rc = connect_to(path, o->deadline_ns, &a->sock);

	if (rc == 0)
		rc = greet(a, path, o, &w, fds);
	if (rc == 0)
		rc = map_region(cache, &w, fds[0]);
	if (fds[0] >= 0)
		close(fds[0]);
	a->owner = fds[1];
	if (rc)
		return rc;
	if (getsockopt(a->sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0)
		a->owner_pid = peer.pid;
	a->nlocks = w.nlocks < TN_DEVICES_MAX ? w.nlocks : TN_DEVICES_MAX;
	for (uint32_t i = 0; i < a->nlocks; i++)
		snprintf(a->lock_path[i], TN_WIRE_PATH, "%.*s", (int)TN_WIRE_PATH - 1, w.lock[i]);
	cache->o.max_ops = cache->region.counts.ops;
	cache->o.max_op_blocks = w.max_op_blocks;
	cache->o.read_only = w.read_only;
	tn_session_limits(cache);
	rc = tn_front_create(cache);
	if (rc == 0)
		rc = start_thread(&a->watcher, watch, cache);
	a->watches = rc == 0;
	return rc;
}

void tn_attach_opts_init_sized(struct tn_attach_opts *opts, size_t size)
{
	static const struct tn_attach_opts defaults = {.size = sizeof(defaults)};

	tn_abi_init(opts, size, &defaults, sizeof(defaults));
}

static int take_opts(const struct tn_attach_opts *opts, struct tn_attach_opts *o)
{
	int rc = 0;

	tn_attach_opts_init(o);
	if (opts)
		rc = tn_abi_in(TN_ABI(tn_attach_opts, token), o, opts);
	if (rc == 0 && o->token && strlen(o->token) >= TN_SERVE_TOKEN_BYTES)
		rc = tn_fail(-EINVAL, "tn_cache_attach: a token of %zu bytes; it has less than %u", strlen(o->token), TN_SERVE_TOKEN_BYTES);
	if (o->deadline_ns == 0)
		o->deadline_ns = tn_now_ns(&tn_clock_system) + 10000 * MS;
	return rc;
}

int tn_cache_attach(const char *path, const struct tn_attach_opts *opts, struct tn_cache **out)
{
	struct tn_cache *cache = NULL;
	struct tn_attach_opts o;
	int rc;

	if (!path || !out)
		return tn_fail(-EINVAL, "tn_cache_attach: path or out is missing");
	rc = take_opts(opts, &o);
	if (rc == 0)
		rc = create(&cache);
	if (rc == 0)
		rc = join(cache, path, &o);
	if (rc == 0) {
		*out = cache;
		return 0;
	}
	if (cache) {
		struct tn_error error = *tn_error_last();

		tn_attached_stop(cache);
		tn_detach(cache);
		tn_fail_at(error.where, "", rc, "%s", error.text);
	}
	return rc;
}
