/* SPDX-License-Identifier: Apache-2.0 */
/* Which boot of the machine this is, who has a file open, which processes live. Reads files: not for the owner thread. */
#ifndef TN_BASE_PROC_H
#define TN_BASE_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * The kernel's identifier of this boot; zero if it does not say. It tells a killed process from a power cut: after the
 * first, all that was written is still in the kernel; after the second, some of it may be lost.
 */
void tn_boot_id(uint64_t id[2]);

/*
 * For messages: another process that has the file open, as far as this process may see it; `first` if that process has it
 * open. 0: none is seen. Reads all of /proc.
 */
pid_t tn_file_holder(const char *path, pid_t first);
/* Whether a process with this number exists; it may be another user's. */
bool tn_process_lives(pid_t pid);
/*
 * Whether the process at the other end of a connected Unix socket is dead: its forked children may keep the socket open. Of one that called
 * listen, that process.
 */
bool tn_peer_is_dead(int sock);

#endif
