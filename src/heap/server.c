/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master's thread: answers requests, watches whether the ranks' processes live, and sweeps.
 *
 * A process is known by its pid as the kernel tells it and its start as the process tells it, and by a pidfd from then on. A request counts only if it comes from
 * the process that has the rank. A new master finds the processes of the ranks in the directory.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/thread.h"
#include "heap/heap_internal.h"

#define CALLERS_MAX (2 * TN_HEAP_RANKS_MAX)
#define SWEEP_NS_MAX 250000000ull
#define SWEEP_NS_MIN 1000000ull
#define SWEEP_PART 20u /* of the time goes to sweeps, at most: they look at each slot */
#define ACCEPT_PAUSE_NS 10000000ull /* after an accept that failed: the connection still waits */
#define EVENTS 16 /* that are taken at once */

/* What an event of the server's epoll is about: one of these, a rank's process, or a caller. */
enum source { STOP, ACCEPT, WAKE, PROCESS_AT, CALLER_AT = PROCESS_AT + TN_HEAP_RANKS_MAX };

struct caller {
	struct tn_fork_fd forked; /* a forked child would keep the connection after this process's death */
	int sock;		  /* 0: the place is free */
	pid_t pid;
	uint32_t joining; /* rank + 1 that it has been let in as; 0: none */
};

/* Who brings the token joins as that rank with these rights. Zeros: there is none. */
struct tn_heap_grant {
	struct tn_heap_token token;
	struct tn_heap_rights rights;
};

struct tn_heap_server {
	struct tn_heap *heap;
	struct tn_heap_master *master;
	struct tn_heap_seat seat;
	int stop; /* eventfd that ends the thread */
	int epoll; /* a wait touches what is ready alone, where poll touches all descriptors */
	pthread_t thread;
	uint64_t accept_ns; /* the thread's: nobody is accepted before; 0: no accept has failed */
	/* The thread's, and under master->lock: */
	int process[TN_HEAP_RANKS_MAX]; /* pidfd of the rank's process; -1: nobody, or this process */
	struct tn_heap_grant grant[TN_HEAP_RANKS_MAX];
	struct caller caller[CALLERS_MAX];
};

static int watch(const struct tn_heap_server *s, int fd, uint32_t source)
{
	struct epoll_event e = {.events = EPOLLIN, .data.u32 = source};

	return epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &e) ? -errno : 0;
}

/* A forked child may have the descriptor, too: then closing it would not end its events. */
static void unwatch(const struct tn_heap_server *s, int fd)
{
	epoll_ctl(s->epoll, EPOLL_CTL_DEL, fd, NULL);
}

/* ---- processes -------------------------------------------------------------------------------------------------- */

static bool is_dead(int process)
{
	struct pollfd p = {.fd = process, .events = POLLIN};

	return poll(&p, 1, 0) > 0;
}

/*
 * A pidfd of the process with that number and start. -ESRCH: it is dead, as the kernel says. Another error says nothing about the process: it may live
 * and write.
 */
static int open_process(pid_t pid, uint64_t start, int *out)
{
	int fd = tn_above_streams((int)syscall(SYS_pidfd_open, pid, 0)), rc = fd < 0 ? -errno : 0, read_rc;
	uint64_t found;

	if (rc == -ESRCH)
		return rc;
	read_rc = tn_heap_process_start(pid, &found);
	if ((read_rc == 0 && found != start) || (rc == 0 && is_dead(fd)))
		rc = -ESRCH;
	else if (rc == 0)
		rc = read_rc;
	if (rc == 0)
		*out = fd;
	else if (fd >= 0)
		close(fd);
	return rc;
}

static void close_process(struct tn_heap_server *s, uint32_t rank)
{
	if (s->process[rank] < 0)
		return;
	unwatch(s, s->process[rank]);
	close(s->process[rank]);
	s->process[rank] = -1;
}

/* Watches the process that has the rank: 0, and the errors of open_process. */
static int watch_process(struct tn_heap_server *s, uint32_t rank, pid_t pid, uint64_t start)
{
	int rc = open_process(pid, start, &s->process[rank]);

	if (rc == 0)
		rc = watch(s, s->process[rank], PROCESS_AT + rank);
	if (rc)
		close_process(s, rank);
	return rc;
}

static uint64_t life_of(const struct tn_heap_server *s, uint32_t rank)
{
	return tn_heap_load64(&s->heap->memory.dir->member[rank].life);
}

/* Ends the life of a rank whose process has died or left. */
static void check_rank(struct tn_heap_server *s, uint32_t rank)
{
	enum tn_heap_life life = tn_heap_life_of(life_of(s, rank));

	if (life == TN_HEAP_NOBODY || rank == s->heap->rank)
		return;
	if (life != TN_HEAP_LEFT && s->process[rank] >= 0 && !is_dead(s->process[rank]))
		return;
	tn_heap_master_end_life(s->master, rank);
	close_process(s, rank);
}

static void begin_life(struct tn_heap_server *s, uint32_t rank, pid_t pid, uint64_t start, const struct tn_heap_rights *rights, enum tn_heap_life life)
{
	struct tn_heap_member *member = &s->heap->memory.dir->member[rank];

	member->start = start;
	member->rights = *rights;
	__atomic_store_n(&member->life, tn_heap_life_word(pid, life), __ATOMIC_RELEASE);
}

void tn_heap_grant(struct tn_heap_server *s, uint32_t rank, const struct tn_heap_rights *rights, const struct tn_heap_token *token)
{
	pthread_mutex_lock(&s->master->lock);
	s->grant[rank] = (struct tn_heap_grant){*token, *rights};
	pthread_mutex_unlock(&s->master->lock);
}

/* The rights of a rank that joins. */
static int find_rights(const struct tn_heap_server *s, const struct tn_heap_ask *ask, struct tn_heap_rights *out)
{
	const struct tn_heap_grant *g = &s->grant[ask->rank];

	*out = tn_heap_all_rights(s->heap->ranks);
	if (!s->heap->memory.need_tokens)
		return 0;
	if (!(g->token.word[0] | g->token.word[1]) || g->token.word[0] != ask->token.word[0] || g->token.word[1] != ask->token.word[1])
		return tn_fail(-EACCES, "heap %s needs a token of its master for rank %u: tn_heap_token_make makes one", s->heap->name, ask->rank);
	*out = g->rights;
	return 0;
}

static int join(struct tn_heap_server *s, const struct tn_heap_ask *ask, struct caller *c, struct tn_heap_rights *rights)
{
	uint64_t life;
	int rc;

	if (ask->ranks != s->heap->ranks || ask->rank >= s->heap->ranks)
		return tn_fail(-EINVAL, "rank %u of %u: heap %s has %u ranks", ask->rank, ask->ranks, s->heap->name, s->heap->ranks);
	rc = find_rights(s, ask, rights);
	if (rc)
		return rc;
	check_rank(s, ask->rank);
	life = life_of(s, ask->rank);
	if (tn_heap_life_of(life) != TN_HEAP_NOBODY)
		return tn_fail(-EEXIST, "rank %u of heap %s: process %d has it", ask->rank, s->heap->name, (int)tn_heap_pid_of(life));
	rc = watch_process(s, ask->rank, c->pid, ask->start);
	if (rc)
		return tn_fail(rc, "process %d is not seen: %s; do both processes run in one PID namespace, with /proc?", (int)c->pid, strerror(-rc));
	begin_life(s, ask->rank, c->pid, ask->start, rights, TN_HEAP_JOINING);
	c->joining = ask->rank + 1;
	return 0;
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

/* A rank gets plans only for heaps that it may write into. */
static int check_owners(const struct tn_heap_server *s, const struct tn_heap_ask *ask, uint64_t may)
{
	for (uint32_t i = 0; i < tn_heap_replicas(ask->want.flags); i++) {
		uint32_t owner = (ask->want.owner + i) % s->heap->ranks;

		if (ask->want.owner < s->heap->ranks && !(may >> owner & 1))
			return tn_fail(-EACCES, "rank %u may not write into the heap of rank %u: its token does not say so", ask->rank, owner);
	}
	return 0;
}

static int carry_out(struct tn_heap_server *s, const struct tn_heap_ask *ask, struct tn_heap_told *told)
{
	uint64_t may = s->heap->memory.dir->member[ask->rank].rights.write;
	int rc;

	switch (ask->op) {
	case TN_HEAP_OPEN:
		rc = check_owners(s, ask, may);
		return rc ? rc : tn_heap_master_open(s->master, &ask->want, &told->plan);
	case TN_HEAP_REMOVE:
		return tn_heap_master_remove(s->master, &ask->want.name, may);
	case TN_HEAP_EVICT:
		rc = tn_heap_master_evict(s->master, ask->percent, may);
		told->count = rc > 0 ? (uint32_t)rc : 0;
		return rc < 0 ? rc : 0;
	case TN_HEAP_HEAR:
		tn_heap_master_hear(s->master);
		return 0;
	default:
		return tn_fail(-EINVAL, "request %u is unknown", ask->op);
	}
}

static void set_status(struct tn_heap_told *told, int rc)
{
	told->magic = TN_HEAP_WIRE_MAGIC;
	told->status = rc;
	if (rc)
		snprintf(told->text, sizeof(told->text), "%.250s", tn_error_last()->text);
}

void tn_heap_answer(struct tn_heap_server *s, const struct tn_heap_ask *ask, struct tn_heap_told *told)
{
	*told = (struct tn_heap_told){0};
	pthread_mutex_lock(&s->master->lock);
	set_status(told, carry_out(s, ask, told));
	pthread_mutex_unlock(&s->master->lock);
}

/* A descriptor of the file that cannot write; -1 and errno. */
static int reopen_for_reading(int fd)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return tn_above_streams(open(path, O_RDONLY | O_CLOEXEC));
}

/* What a process of those rights maps, in the order of segment.h; a bit of *opened is set for those that are to be closed. 0 or -errno. */
static int gather(const struct tn_heap_memory *m, const struct tn_heap_rights *rights, int fds[TN_HEAP_FDS_MAX], uint64_t *opened)
{
	int *fd = fds;

	*opened = 0;
	*fd++ = m->dir_fd;
	*fd++ = m->wake_fd;
	for (uint32_t r = 0; r < m->ranks; r++)
		*fd++ = m->ctl_fd[r];
	for (uint32_t r = 0; r < m->ranks && !m->on_device; r++) {
		if (rights->write >> r & 1) {
			*fd++ = m->payload_fd[r];
		} else if (rights->read >> r & 1) {
			*fd = reopen_for_reading(m->payload_fd[r]);
			if (*fd < 0)
				return -errno;
			*opened |= UINT64_C(1) << (fd - fds - 2 - m->ranks);
			fd++;
		}
	}
	return 0;
}

/* 0 or -errno: who does not read gets nothing. */
static int send_told(int sock, const struct tn_heap_told *told)
{
	return send(sock, told, tn_heap_told_bytes(told), MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static int send_files(int sock, const struct tn_heap_told *told, const int *fds, uint32_t nfds)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(TN_HEAP_FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = {(void *)(uintptr_t)told, tn_heap_told_bytes(told)};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(nfds * sizeof(int))};

	memset(&control, 0, sizeof(control));
	control.head = (struct cmsghdr){CMSG_LEN(nfds * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
	memcpy(CMSG_DATA(&control.head), fds, nfds * sizeof(int));
	return sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* To a process that has been let in. One that is told of an error in place of what it may map hangs up, and has not joined. 0 or -errno: it was told nothing. */
static int send_memory(struct tn_heap_server *s, int sock, struct tn_heap_told *told)
{
	const struct tn_heap_memory *m = &s->heap->memory;
	int fds[TN_HEAP_FDS_MAX], rc;
	uint64_t opened;

	rc = gather(m, &told->rights, fds, &opened);
	if (rc == 0)
		rc = send_files(sock, told, fds, tn_heap_fds_of(m->ranks, m->on_device, &told->rights));
	for (uint32_t i = 0; i < m->ranks; i++)
		if (opened >> i & 1)
			close(fds[2 + m->ranks + i]);
	if (rc == 0)
		return 0;
	set_status(told, tn_fail(rc, "the memory of heap %s cannot be passed on: %s%s", s->heap->name, strerror(-rc),
				 rc == -ETOOMANYREFS ? "; more descriptors of this user are on their way than the master's RLIMIT_NOFILE: raise it" : ""));
	return send_told(sock, told);
}

/* A caller speaks for the rank that it has joined as, and about this heap. */
static int check_caller(const struct tn_heap_server *s, const struct caller *c, const struct tn_heap_ask *ask)
{
	if (ask->id != s->heap->memory.id)
		return tn_fail(-ESTALE, "heap %s was made anew, and this rank has the one before: leave it, and join again", s->heap->name);
	if (ask->rank >= s->heap->ranks || s->process[ask->rank] < 0 || tn_heap_pid_of(life_of(s, ask->rank)) != c->pid ||
	    s->heap->memory.dir->member[ask->rank].start != ask->start)
		return tn_fail(-EACCES, "process %d does not have rank %u of heap %s", (int)c->pid, ask->rank, s->heap->name);
	return 0;
}

/* A process that leaves before it has mapped the memory has not joined. */
static void hang_up(struct tn_heap_server *s, struct caller *c)
{
	pthread_mutex_lock(&s->master->lock);
	if (c->joining && tn_heap_life_move(&s->heap->memory, c->joining - 1, c->pid, TN_HEAP_JOINING, TN_HEAP_LEFT))
		check_rank(s, c->joining - 1);
	pthread_mutex_unlock(&s->master->lock);
	unwatch(s, c->sock);
	tn_fork_unwatch(&c->forked);
	close(c->sock);
	*c = (struct caller){0};
}

static void answer_caller(struct tn_heap_server *s, struct caller *c, struct tn_heap_ask *ask)
{
	struct tn_heap_told told = {0};
	bool joins = ask->op == TN_HEAP_JOIN;
	int rc;

	pthread_mutex_lock(&s->master->lock);
	rc = joins ? join(s, ask, c, &told.rights) : check_caller(s, c, ask);
	if (rc == 0 && !joins)
		rc = carry_out(s, ask, &told);
	set_status(&told, rc);
	pthread_mutex_unlock(&s->master->lock);
	if (joins && rc == 0 ? send_memory(s, c->sock, &told) : send_told(c->sock, &told))
		hang_up(s, c);
}

static void take_request(struct tn_heap_server *s, struct caller *c)
{
	struct tn_heap_ask ask;
	ssize_t n = recv(c->sock, &ask, sizeof(ask), MSG_DONTWAIT | MSG_TRUNC);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n != (ssize_t)sizeof(ask) || ask.magic != TN_HEAP_WIRE_MAGIC) {
		hang_up(s, c);
		return;
	}
	answer_caller(s, c, &ask);
}

/* NULL: all places are taken. */
static struct caller *free_place(struct tn_heap_server *s)
{
	for (uint32_t i = 0; i < CALLERS_MAX; i++)
		if (!s->caller[i].sock)
			return &s->caller[i];
	return NULL;
}

static void accept_later(const struct tn_heap_server *s, bool later)
{
	struct epoll_event e = {.events = later ? 0 : EPOLLIN, .data.u32 = ACCEPT};

	epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->seat.sock, &e);
}

static void accept_one(struct tn_heap_server *s, uint64_t now)
{
	struct caller *c = free_place(s);
	pid_t pid;
	int sock;

	tn_fork_lock();
	sock = tn_above_streams(accept4(s->seat.sock, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
	if (sock < 0 && errno != EAGAIN && errno != ECONNABORTED) { /* out of descriptors, or of memory */
		s->accept_ns = now + ACCEPT_PAUSE_NS;
		accept_later(s, true);
	}
	if (sock >= 0 && c)
		tn_fork_watch(&c->forked, sock);
	tn_fork_unlock();
	if (sock < 0)
		return;
	if (c && tn_heap_peer(sock, &pid) == 0 && watch(s, sock, CALLER_AT + (uint32_t)(c - s->caller)) == 0) {
		c->sock = sock;
		c->pid = pid;
		return;
	}
	if (c)
		tn_fork_unwatch(&c->forked);
	close(sock);
}

/* ---- the thread ------------------------------------------------------------------------------------------------- */

static void tend(struct tn_heap_server *s, uint64_t now)
{
	pthread_mutex_lock(&s->master->lock);
	for (uint32_t r = 0; r < s->heap->ranks; r++)
		check_rank(s, r);
	tn_heap_master_sweep(s->master, now);
	pthread_mutex_unlock(&s->master->lock);
}

static void hear_announces(struct tn_heap_server *s)
{
	uint64_t n;

	if (read(s->heap->memory.wake_fd, &n, sizeof(n)) < 0)
		return;
	pthread_mutex_lock(&s->master->lock);
	tn_heap_master_hear(s->master);
	pthread_mutex_unlock(&s->master->lock);
}

static uint64_t sweep_period(const struct tn_heap_server *s)
{
	uint64_t ns = s->heap->memory.reclaim_ns / 8;

	return ns < SWEEP_NS_MIN ? SWEEP_NS_MIN : ns > SWEEP_NS_MAX ? SWEEP_NS_MAX : ns;
}

/* Of this thread: a sweep that waits for the CPU does not slow the next ones down. */
static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Milliseconds until the next sweep, or the next accept. */
static int wait_ms(const struct tn_heap_server *s, uint64_t now, uint64_t due)
{
	uint64_t wake = s->accept_ns && s->accept_ns < due ? s->accept_ns : due;

	return wake > now ? (int)((wake - now) / 1000000u + 1) : 0;
}

/* True: a process has died. */
static bool take_event(struct tn_heap_server *s, uint32_t source, uint64_t now)
{
	if (source >= CALLER_AT)
		take_request(s, &s->caller[source - CALLER_AT]);
	else if (source == ACCEPT)
		accept_one(s, now);
	else if (source == WAKE)
		hear_announces(s);
	return source >= PROCESS_AT && source < CALLER_AT;
}

static void *serve(void *arg)
{
	struct tn_heap_server *s = arg;
	uint64_t period = sweep_period(s), due = 0;
	struct epoll_event e[EVENTS];

	pthread_setname_np(pthread_self(), "tenuto-heap");
	for (;;) {
		uint64_t now = tn_now_ns(&tn_clock_system), began, took;
		int n = epoll_wait(s->epoll, e, EVENTS, wait_ms(s, now, due));
		bool died = false;

		for (int i = 0; i < n; i++) {
			if (e[i].data.u32 == STOP)
				return NULL;
			died |= take_event(s, e[i].data.u32, now);
		}
		now = tn_now_ns(&tn_clock_system);
		if (s->accept_ns && now >= s->accept_ns) {
			s->accept_ns = 0;
			accept_later(s, false);
		}
		if (!died && now < due)
			continue;
		began = cpu_ns();
		tend(s, now);
		took = cpu_ns() - began;
		now = tn_now_ns(&tn_clock_system);
		due = now + (took * SWEEP_PART > period ? took * SWEEP_PART : period);
	}
}

/* ---- beginning and end ------------------------------------------------------------------------------------------ */

/* The processes that have ranks already: another master has let them in. An error if it is not known whether one lives. */
static int find_processes(struct tn_heap_server *s)
{
	int rc;

	for (uint32_t r = 0; r < s->heap->ranks; r++) {
		pid_t pid = tn_heap_pid_of(life_of(s, r));

		if (r == s->heap->rank)
			continue;
		/* The last master let it in: it has not joined yet, and will not. */
		tn_heap_life_move(&s->heap->memory, r, pid, TN_HEAP_JOINING, TN_HEAP_LEFT);
		if (tn_heap_life_of(life_of(s, r)) != TN_HEAP_ALIVE)
			continue;
		rc = watch_process(s, r, pid, s->heap->memory.dir->member[r].start);
		if (rc && rc != -ESRCH)
			return tn_fail(rc, "whether process %d, rank %u of heap %s, lives is not known: %s", (int)pid, r, s->heap->name, strerror(-rc));
	}
	return 0;
}

static int make_events(struct tn_heap_server *s)
{
	s->epoll = tn_above_streams(epoll_create1(EPOLL_CLOEXEC));
	s->stop = tn_above_streams(eventfd(0, EFD_CLOEXEC));
	if (s->epoll < 0 || s->stop < 0 || watch(s, s->stop, STOP) || watch(s, s->seat.sock, ACCEPT) || watch(s, s->heap->memory.wake_fd, WAKE))
		return tn_fail(-errno, "the events of heap %s: %s", s->heap->name, strerror(errno));
	return 0;
}

static int start(struct tn_heap_server *s)
{
	int rc = tn_heap_seat_take(&s->seat, s->heap->name, s->heap->timeout_ns);

	if (rc == 0)
		rc = make_events(s);
	if (rc == 0)
		rc = find_processes(s);
	if (rc == 0)
		rc = tn_heap_master_create(&s->heap->memory, &s->master);
	if (rc)
		return rc;
	s->heap->memory.dir->master = s->heap->rank;
	if (tn_heap_life_of(life_of(s, s->heap->rank)) != TN_HEAP_ALIVE)
		begin_life(s, s->heap->rank, getpid(), s->heap->start, &s->heap->memory.rights, TN_HEAP_ALIVE);
	for (uint32_t r = 0; r < s->heap->ranks; r++)
		tn_heap_ctl_of(&s->heap->memory, r)->epoch++;
	if (listen(s->seat.sock, TN_HEAP_RANKS_MAX))
		return tn_fail(-errno, "the socket of heap %s: %s", s->heap->name, strerror(errno));
	rc = tn_thread_start(&s->thread, serve, s);
	return rc ? tn_fail(-rc, "no thread for the master of heap %s: %s", s->heap->name, strerror(rc)) : 0;
}

static void destroy(struct tn_heap_server *s)
{
	for (uint32_t i = 0; i < CALLERS_MAX; i++) {
		tn_fork_unwatch(&s->caller[i].forked);
		if (s->caller[i].sock)
			close(s->caller[i].sock);
	}
	for (uint32_t r = 0; r < TN_HEAP_RANKS_MAX; r++)
		close_process(s, r);
	tn_heap_seat_leave(&s->seat, s->heap->name);
	if (s->stop >= 0)
		close(s->stop);
	if (s->epoll >= 0)
		close(s->epoll);
	tn_heap_master_destroy(s->master);
	tn_put(&tn_alloc_system, s, sizeof(*s));
}

int tn_heap_serve(struct tn_heap *heap, struct tn_heap_server **out)
{
	struct tn_heap_server *s = tn_get(&tn_alloc_system, sizeof(*s));
	int rc;

	if (!s)
		return tn_fail(-ENOMEM, "no memory for the master of heap %s", heap->name);
	s->heap = heap;
	s->stop = s->epoll = -1;
	for (uint32_t r = 0; r < TN_HEAP_RANKS_MAX; r++)
		s->process[r] = -1;
	rc = start(s);
	if (rc)
		destroy(s);
	else
		*out = s;
	return rc;
}

void tn_heap_serve_end(struct tn_heap_server *s)
{
	uint64_t one = 1;

	if (!s)
		return;
	while (write(s->stop, &one, sizeof(one)) < 0 && errno == EINTR)
		;
	pthread_join(s->thread, NULL);
	destroy(s);
}
