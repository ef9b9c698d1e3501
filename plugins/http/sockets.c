/* SPDX-License-Identifier: Apache-2.0 */
#include "sockets.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct http_sockets *all;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
	for (struct http_sockets *s = all; s; s = s->next)
		for (unsigned i = 0; i < HTTP_SOCKETS_MAX; i++)
			if (s->fd[i] >= 0)
				close(s->fd[i]);
	all = NULL;
	pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, in_child);
}

void http_sockets_begin(struct http_sockets *s)
{
	pthread_once(&once, watch_forks);
	for (unsigned i = 0; i < HTTP_SOCKETS_MAX; i++)
		s->fd[i] = -1;
	pthread_mutex_lock(&lock);
	s->next = all;
	all = s;
	pthread_mutex_unlock(&lock);
}

void http_sockets_end(struct http_sockets *s)
{
	pthread_mutex_lock(&lock);
	for (struct http_sockets **at = &all; *at; at = &(*at)->next)
		if (*at == s) {
			*at = s->next;
			break;
		}
	pthread_mutex_unlock(&lock);
}

int http_sockets_open(struct http_sockets *s, int family, int type, int protocol)
{
	int fd = -1;

	/* Under the lock: no child has a socket that is not in the table. */
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < HTTP_SOCKETS_MAX; i++)
		if (s->fd[i] < 0) {
			fd = s->fd[i] = socket(family, type | SOCK_CLOEXEC, protocol);
			break;
		}
	pthread_mutex_unlock(&lock);
	return fd;
}

void http_sockets_close(struct http_sockets *s, int fd)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < HTTP_SOCKETS_MAX; i++)
		if (s->fd[i] == fd) {
			s->fd[i] = -1;
			break;
		}
	close(fd);
	pthread_mutex_unlock(&lock);
}
