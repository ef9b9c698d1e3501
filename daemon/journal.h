/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's log lines, on stderr. Under systemd each begins with its priority as <N>, which the journal takes off (sd-daemon(3)); elsewhere
 * with the program's name and the level.
 *
 * A thread writes them, so that a stderr that takes nothing (a full pipe, a stopped terminal, a disk that hangs) holds up that thread alone.
 * Lines beyond those that wait are lost and counted; where they are missing, a line says how many.
 */
#ifndef TENUTOD_JOURNAL_H
#define TENUTOD_JOURNAL_H

#include <stdint.h>

#include <tenuto/error.h>

/* Starts the thread, which takes no signals that the caller has blocked. Lines up to info are written. 0, or -errno. */
int journal_open(void);
/* Ends it once it has written what waits, or after a second. */
void journal_close(void);
void journal_set_level(enum tn_log_level level);

/* One line; any thread; never waits. Without journal_open it is lost. */
void journal_line(enum tn_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* How many lines were lost. Any thread. */
uint64_t journal_lost(void);

/* The library's (tn_log_fn). */
void journal_of_library(void *arg, enum tn_log_level level, const char *where, const char *text);

#endif
