/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a forked child must not keep of its parent, and how it knows that it is one.
 *
 * A lock on a file ends when the last descriptor of its description is closed, and a child has copies of all descriptors. A child that
 * outlives a killed parent would keep the parent's locks. So whoever opens such a file, or a ring that refers to it, adds
 * the descriptor to a list, and a child closes the descriptors of that list before fork returns (pthread_atfork). No handler
 * runs in a child that was made by the system call itself, but such a child knows by tn_process_is that it is another process.
 */
#ifndef TN_BASE_FORK_H
#define TN_BASE_FORK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

struct tn_fork_fd {
	struct tn_list link;
	int fd;
};

/*
 * A fork of this process waits from lock until unlock. So between the two a descriptor can be made and watched, and no child
 * has a descriptor that is not in its list. The caller makes no call that may block between the two. Other tables of the
 * process that a child uses, too, are kept under the same lock.
 */
void tn_fork_lock(void);
void tn_fork_unlock(void);
/* watch: call it between lock and unlock. unwatch: call it before the descriptor is closed; it ignores a zeroed entry. */
void tn_fork_watch(struct tn_fork_fd *w, int fd);
void tn_fork_unwatch(struct tn_fork_fd *w);
/*
 * Forks of this process that ran the handlers. If the number rose, a child may have a descriptor that was not watched
 * yet.
 */
uint64_t tn_fork_count(void);

/* A number of this process; its children have another one, however they were made. Any thread. */
uint64_t tn_process_mark(void);
bool tn_process_is(uint64_t mark);

#endif
