/* SPDX-License-Identifier: Apache-2.0 */
#include "base/guard.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of changes */
static struct tn_guard *guards; /* shared: read by the handler */
static uint32_t inside;		/* shared: handlers that look at the list */
static struct sigaction before;
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
 * The mark comes first: whoever reads one of the zeros and looks then, sees it. By the system call itself: ThreadSanitizer takes mmap for a write, which
 * would race with those who read the memory meanwhile.
 */
static bool replace(const struct tn_guard *g)
{
	__atomic_store_n(g->lost, 1, __ATOMIC_SEQ_CST);
	return syscall(SYS_mmap, g->address, g->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != -1;
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
	const struct tn_guard *g;
	bool over;

	__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
	g = info->si_code > 0 ? find(info->si_addr) : NULL; /* not of kill() */
	over = g && replace(g);
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

int tn_guard_add(struct tn_guard *g, void *address, size_t bytes, uint32_t *lost)
{
	int rc;

	pthread_mutex_lock(&lock);
	rc = install();
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
	while (*at != g)
		at = &(*at)->next;
	__atomic_store_n(at, g->next, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&lock);
	while (__atomic_load_n(&inside, __ATOMIC_SEQ_CST)) /* a handler may still be at this one; each is a few instructions */
		sched_yield();
	g->lost = NULL;
}
