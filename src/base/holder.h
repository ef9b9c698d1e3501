/* SPDX-License-Identifier: Apache-2.0 */
/* Who has a file open, for messages: as far as /proc shows it to this process. */
#ifndef TN_BASE_HOLDER_H
#define TN_BASE_HOLDER_H

#include <stdbool.h>
#include <sys/types.h>

/* Another process that has the file open, `first` if it is one of them; 0: none is seen. Looks at all of /proc. */
pid_t tn_file_holder(const char *path, pid_t first);
/* Whether there is such a process, also one of another user. */
bool tn_process_lives(pid_t pid);

#endif
