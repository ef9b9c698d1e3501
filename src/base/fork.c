/* SPDX-License-Identifier: Apache-2.0 */
/* The mark lies in a page that the kernel zeroes in every child (MADV_WIPEONFORK, Linux 4.14). */
#include "base/fork.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096u

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tn_list watched; /* under lock */
static uint64_t forks;	       /* under lock */
static uint64_t marks;	       /* under lock: numbers given out by this process and its ancestors */
static uint64_t no_page;       /* used if the page could not be mapped */
static uint64_t *mark;

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
	forks++;
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&lock);
}

/* Makes only calls that are safe in the child of a process with threads. The child's list begins empty. */
static void after_fork_in_child(void)
{
	for (struct tn_list *at = watched.next; at != &watched; at = at->next)
		close(tn_container_of(at, struct tn_fork_fd, link)->fd);
	tn_list_init(&watched);
	__atomic_store_n(mark, 0, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&lock);
}

static void set_up(void)
{
	void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	mark = page == MAP_FAILED ? &no_page : page;
	if (page != MAP_FAILED)
		madvise(page, PAGE, MADV_WIPEONFORK); /* if the kernel refuses, the handler sets the mark to 0 in most children */
	tn_list_init(&watched);
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void tn_fork_lock(void)
{
	pthread_once(&once, set_up);
	pthread_mutex_lock(&lock);
}

void tn_fork_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

void tn_fork_watch(struct tn_fork_fd *w, int fd)
{
	w->fd = fd;
	tn_list_push(&watched, &w->link);
}

void tn_fork_unwatch(struct tn_fork_fd *w)
{
	tn_fork_lock(); /* adding or removing a neighbour writes into this link, too */
	if (w->link.next)
		tn_list_del(&w->link);
	tn_fork_unlock();
}

uint64_t tn_fork_count(void)
{
	uint64_t n;

	tn_fork_lock();
	n = forks;
	tn_fork_unlock();
	return n;
}

uint64_t tn_process_mark(void)
{
	uint64_t m;

	tn_fork_lock();
	if (*mark == 0)
		__atomic_store_n(mark, ++marks, __ATOMIC_RELAXED);
	m = *mark;
	tn_fork_unlock();
	return m;
}

bool tn_process_is(uint64_t m)
{
	return __atomic_load_n(mark, __ATOMIC_RELAXED) == m;
}
