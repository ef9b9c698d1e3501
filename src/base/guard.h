/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mapped memory whose pages may go away: of a file that another process can truncate or punch. The kernel answers an access to a page that
 * is not there any more with SIGBUS.
 *
 * A guard installs a handler of that signal, unless it is there. If the address is in guarded memory, the handler marks the memory as lost and maps a spare
 * file over all of it, 1 MiB that was set aside before, as often as it takes; the access then goes on, and finds bytes without a meaning. All memory that is
 * lost has the same spare bytes. So whoever has read or written such memory looks at the mark afterwards, and lets nobody see what was read. A fault elsewhere goes
 * to the handler that was there before. Who installs one later has to pass on what is not its own.
 *
 * Each further MiB that is touched costs a mapping, of which a process has 65,530 (vm.max_map_count): whoever finds the mark begins nothing more there.
 *
 * A forked child has no guards: its parent's mappings are not there.
 *
 * A thread that blocks SIGBUS dies of it, whatever the handler says: the library's threads (base/thread.h) do not.
 */
#ifndef TN_BASE_GUARD_H
#define TN_BASE_GUARD_H

#include <stddef.h>
#include <stdint.h>

struct tn_guard {
	struct tn_guard *next; /* shared */
	unsigned char *address;
	size_t bytes;
	uint32_t *lost; /* shared */
	uint32_t state; /* shared: whether another file is there already */
};

/* Takes now what guards need later: the handler, and the spare memory. 0, or an error. Any thread. */
int tn_guard_prepare(void);
/* Guards a mapping until remove; *lost becomes 1 if pages of it are gone. 0, or an error of tn_guard_prepare. Any thread. */
int tn_guard_add(struct tn_guard *g, void *address, size_t bytes, uint32_t *lost);
/* Before the mapping goes, and after its last access. It ignores a zeroed entry. */
void tn_guard_remove(struct tn_guard *g);

#endif
