/* SPDX-License-Identifier: Apache-2.0 */
#include "journal.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>

#define LINE_BYTES 1024

static bool to_journal;
static enum tn_log_level most = TN_LOG_INFO; /* shared */

void journal_open(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat st;

	/* The variable stays when stderr is sent elsewhere: systemd.exec(5) says to compare. */
	to_journal = stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 && fstat(2, &st) == 0 && st.st_dev == device &&
		     st.st_ino == inode;
}

void journal_set_level(enum tn_log_level level)
{
	__atomic_store_n(&most, level, __ATOMIC_RELAXED);
}

void journal_line(enum tn_log_level level, const char *fmt, ...)
{
	static const char *const priority[] = {SD_ERR, SD_WARNING, SD_INFO, SD_DEBUG};
	static const char *const name[] = {"tenutod: error: ", "tenutod: warning: ", "tenutod: ", "tenutod: debug: "};
	char text[LINE_BYTES];
	va_list ap;

	if (level > __atomic_load_n(&most, __ATOMIC_RELAXED))
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	/* stderr locks itself and has no buffer: one line is one write, whatever the threads. */
	fprintf(stderr, "%s%s\n", to_journal ? priority[level] : name[level], text);
}

void journal_of_library(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	journal_line(level, "%s", text);
}
