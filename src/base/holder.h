/* SPDX-License-Identifier: Apache-2.0 */
/* Who has a file open, for messages: as far as /proc shows that to this process. */
#ifndef TN_BASE_HOLDER_H
#define TN_BASE_HOLDER_H

#include <stdbool.h>
#include <sys/types.h>

/* Another process that has the file open: `first` if that process has it open. 0: none is seen. Reads all of /proc. */
pid_t tn_file_holder(const char *path, pid_t first);
/* Whether a process with this number exists; it may be another user's. */
bool tn_process_lives(pid_t pid);

#endif
