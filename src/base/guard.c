/* SPDX-License-Identifier: Apache-2.0 */
#include "base/descriptor.h"
#include "base/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"

#define SPARE_BYTES (1u << 20)

/* Of a guard, in this order. */
enum { WHOLE, BEING_REPLACED, REPLACED };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of changes */
static struct tn_guard *guards; /* shared: read by the handler */
static uint32_t inside;		/* shared: handlers that look at the list */
static int spare = -1;		/* shared: a file of SPARE_BYTES whose pages are all there; -1: not made yet */
static struct sigaction before;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* This thread is in the handler before. If that passes on to this one, which it replaced once, nobody wants the fault. */
static __thread bool passing __attribute__((tls_model("initial-exec")));

static struct tn_guard *find(const unsigned char *address)
{
	struct tn_guard *g = __atomic_load_n(&guards, __ATOMIC_SEQ_CST);

	while (g && !(address >= g->address && address < g->address + g->bytes))
		g = __atomic_load_n(&g->next, __ATOMIC_SEQ_CST);
	return g;
}

/*
 * A shared mapping of a file, which needs no commit charge: private memory may be refused at this moment (vm.overcommit_memory 2, RLIMIT_DATA). By the system
 * call itself: ThreadSanitizer takes mmap for a write, which would race with those who read the memory meanwhile.
 */
static bool map_spare(unsigned char *address, size_t bytes)
{
	int fd = __atomic_load_n(&spare, __ATOMIC_RELAXED);

	/* Each argument is a whole word: of an int the kernel would find more than 32 bits. */
	return syscall(SYS_mmap, address, bytes, (long)(PROT_READ | PROT_WRITE), (long)(MAP_SHARED | MAP_FIXED), (long)fd, 0l) != -1;
}

/*
 * The first fault puts the spare file over all of the mapping, whose pages may be huge. Beyond the file's end each access faults again, and gets
 * the file's beginning for the part around it. The mark comes first: whoever reads one of these bytes and looks then, sees it.
 */
static bool replace(struct tn_guard *g, const unsigned char *fault)
{
	size_t at = (size_t)(fault - g->address) / SPARE_BYTES * SPARE_BYTES, left = g->bytes - at;
	uint32_t state = WHOLE;
	bool mapped;

	__atomic_store_n(g->lost, 1, __ATOMIC_SEQ_CST);
	if (__atomic_compare_exchange_n(&g->state, &state, BEING_REPLACED, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
		mapped = map_spare(g->address, g->bytes);
		__atomic_store_n(&g->state, mapped ? REPLACED : WHOLE, __ATOMIC_SEQ_CST);
		return mapped;
	}
	if (state == REPLACED)
		return map_spare(g->address + at, left < SPARE_BYTES ? left : SPARE_BYTES);
	sched_yield(); /* another thread is about to: the access faults once more */
	return true;
}

static void pass_on(int signal, siginfo_t *info, void *context)
{
	bool none = before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN;

	if (passing || (none && !(before.sa_flags & SA_SIGINFO))) {
		sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL); /* the access faults again, and the process dies of it */
		return;
	}
	passing = true;
	if (before.sa_flags & SA_SIGINFO)
		before.sa_sigaction(signal, info, context);
	else
		before.sa_handler(signal);
	passing = false;
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
	int saved = errno;
	struct tn_guard *g;
	bool over;

	__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
	g = info->si_code > 0 ? find(info->si_addr) : NULL; /* not of kill() */
	over = g && replace(g, info->si_addr);
	__atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
	if (!over)
		pass_on(signal, info, context);
	errno = saved;
}

/* Again, where somebody has replaced it. */
static int install(void)
{
	struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER}, now;

	sigemptyset(&a.sa_mask);
	if (sigaction(SIGBUS, NULL, &now))
		return tn_fail(-errno, "the handler of SIGBUS is not known: %s", strerror(errno));
	if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault)
		return 0;
	before = now;
	if (sigaction(SIGBUS, &a, NULL))
		return tn_fail(-errno, "cannot install a handler of SIGBUS: %s", strerror(errno));
	return 0;
}

/* All pages are there, and charged, from now on. */
static int make_spare(void)
{
	int fd = tn_above_streams(memfd_create("tenuto-guard", MFD_CLOEXEC)), rc;

	if (fd >= 0 && fallocate(fd, 0, 0, SPARE_BYTES) == 0) {
		__atomic_store_n(&spare, fd, __ATOMIC_RELAXED);
		return 0;
	}
	rc = tn_fail(-errno, "cannot set aside %u bytes for memory of other processes that goes away: %s", SPARE_BYTES, strerror(errno));
	if (fd >= 0)
		close(fd);
	return rc;
}

/* ---- forks ------------------------------------------------------------------------------------------------- */

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&lock);
}

/* Makes only calls that are safe in the child of a process with threads. No handler runs there, and the guarded mappings are the parent's. */
static void after_fork_in_child(void)
{
	guards = NULL;
	__atomic_store_n(&inside, 0, __ATOMIC_RELAXED);
	if (spare >= 0)
		close(spare);
	spare = -1;
	pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- guards ------------------------------------------------------------------------------------------------ */

static int prepare(void)
{
	int rc = install();

	return rc || spare >= 0 ? rc : make_spare();
}

int tn_guard_prepare(void)
{
	int rc;

	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&lock);
	rc = prepare();
	pthread_mutex_unlock(&lock);
	return rc;
}

int tn_guard_add(struct tn_guard *g, void *address, size_t bytes, uint32_t *lost)
{
	int rc;

	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&lock);
	rc = prepare();
	if (rc == 0) {
		*g = (struct tn_guard){.next = guards, .address = address, .bytes = bytes, .lost = lost};
		__atomic_store_n(&guards, g, __ATOMIC_SEQ_CST);
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

void tn_guard_remove(struct tn_guard *g)
{
	struct tn_guard **at = &guards;

	if (!g->lost)
		return;
	pthread_mutex_lock(&lock);
	while (*at && *at != g)
		at = &(*at)->next;
	if (*at) /* a forked child has none of its parent's */
		__atomic_store_n(at, g->next, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&lock);
	while (__atomic_load_n(&inside, __ATOMIC_SEQ_CST)) /* a handler may still be at this one; each is a few instructions */
		sched_yield();
	g->lost = NULL;
}
