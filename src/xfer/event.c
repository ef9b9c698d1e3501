/* SPDX-License-Identifier: Apache-2.0 */
/* What an agent tells its user: the event word, its eventfd, notifications. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/futex.h"
#include "xfer/agent.h"
#include "xfer/wake.h"

#define BEYOND_BYTES (32u << 20) /* more than two agents and the kernel buffer for one connection */

void tn_xfer_raise(struct tn_xfer_agent *a)
{
	uint64_t one = 1;

	__atomic_fetch_add(&a->event_word, 1, __ATOMIC_RELEASE);
	tn_futex_wake(&a->event_word);
	if (a->eventfd >= 0) {
		ssize_t n = write(a->eventfd, &one, sizeof(one));

		(void)n; /* full: it is readable */
	}
	if (a->wake)
		a->wake(a->wake_arg);
}

void tn_xfer_wake_by(struct tn_xfer_agent *a, void (*fn)(void *arg), void *arg)
{
	a->wake = fn;
	a->wake_arg = arg;
}

int tn_xfer_enqueue(struct tn_xfer_agent *a, const char *sender, const void *bytes, uint32_t n, bool beyond)
{
	struct tn_xfer_notification *note;

	if (a->nnotifications >= a->notifications_max && (!beyond || a->notification_bytes >= BEYOND_BYTES))
		return -EAGAIN;
	note = tn_get(&tn_alloc_system, sizeof(*note) + n);
	if (!note)
		return -ENOMEM;
	snprintf(note->sender, sizeof(note->sender), "%s", sender);
	note->bytes = n;
	if (n)
		memcpy(note->data, bytes, n);
	tn_list_push(&a->notifications, &note->link);
	a->nnotifications++;
	a->notification_bytes += sizeof(*note) + n;
	a->stat[TN_XFER_STAT_NOTIFICATIONS]++;
	tn_xfer_raise(a);
	return 0;
}

int64_t tn_xfer_take(struct tn_xfer_agent *agent, char *sender, void *out, size_t max)
{
	struct tn_xfer_notification *note;
	int64_t n;

	if (!agent || !sender || (max && !out))
		return tn_fail(-EINVAL, "agent %p, sender %p, %zu bytes at %p: all are wanted", (void *)agent, (void *)sender, max, out);
	pthread_mutex_lock(&agent->lock);
	if (tn_list_empty(&agent->notifications)) {
		pthread_mutex_unlock(&agent->lock);
		return -EAGAIN;
	}
	note = tn_container_of(agent->notifications.next, struct tn_xfer_notification, link);
	n = note->bytes;
	if ((uint64_t)n <= max) {
		bool was_full = agent->nnotifications-- >= agent->notifications_max;

		tn_list_del(&note->link);
		agent->notification_bytes -= sizeof(*note) + note->bytes;
		memcpy(sender, note->sender, sizeof(note->sender));
		if (n)
			memcpy(out, note->data, (size_t)n);
		tn_put(&tn_alloc_system, note, sizeof(*note) + note->bytes);
		if (was_full)
			tn_xfer_control_wake(&agent->control);
	}
	pthread_mutex_unlock(&agent->lock);
	return n;
}

const uint32_t *tn_xfer_event_word(struct tn_xfer_agent *agent)
{
	return &agent->event_word;
}

int tn_xfer_event_wait(struct tn_xfer_agent *agent, uint32_t seen, uint64_t deadline_ns)
{
	while (__atomic_load_n(&agent->event_word, __ATOMIC_ACQUIRE) == seen)
		if (tn_now_ns(&tn_clock_system) >= deadline_ns || tn_futex_wait(&agent->event_word, seen, deadline_ns) == -ETIMEDOUT)
			return -ETIMEDOUT;
	return 0;
}

int tn_xfer_eventfd(struct tn_xfer_agent *agent)
{
	int fd;

	if (!agent)
		return tn_fail(-EINVAL, "no agent");
	pthread_mutex_lock(&agent->lock);
	if (agent->eventfd < 0)
		agent->eventfd = tn_above_streams(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	fd = agent->eventfd < 0 ? tn_fail(-errno, "eventfd: %s", strerror(errno)) : agent->eventfd;
	pthread_mutex_unlock(&agent->lock);
	return fd;
}
