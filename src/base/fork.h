/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a forked child must not keep of its parent, and how it knows that it is one.
 *
 * A lock on a file ends when the last descriptor of its description is closed, and a child has copies of all: a child that
 * outlives a killed parent would keep the parent's locks. So whoever opens such a file, or a ring that refers to it, adds
 * the descriptor to a list, and a child closes what is in it before fork returns (pthread_atfork). A child that is made by
 * the system call itself is not seen by that, but knows by tn_process_is that it is another process.
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
 * A fork of this process waits until unlock: between them a descriptor can be made and watched without a child that has
 * it and does not know. Nothing that may block is called meanwhile.
 */
void tn_fork_lock(void);
void tn_fork_unlock(void);
/* Between lock and unlock. unwatch: before the descriptor is closed; of what is not watched (zeroed) it does nothing. */
void tn_fork_watch(struct tn_fork_fd *w, int fd);
void tn_fork_unwatch(struct tn_fork_fd *w);
/* How often this process forked, as far as tn_fork_lock knows: if it did meanwhile, a child may have what was not watched. */
uint64_t tn_fork_count(void);

/* A number that this process has and its children, however they were made, have not; any thread. */
uint64_t tn_process_mark(void);
bool tn_process_is(uint64_t mark);

#endif
