/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's log lines, on stderr. Under systemd each begins with its priority as <N>, which the journal takes off (sd-daemon(3)); elsewhere
 * with the program's name and the level.
 */
#ifndef TENUTOD_JOURNAL_H
#define TENUTOD_JOURNAL_H

#include <tenuto/error.h>

/* Looks whether stderr is the journal; lines up to info are written from here on. */
void journal_open(void);
void journal_set_level(enum tn_log_level level);

/* One line; any thread. */
void journal_line(enum tn_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The library's (tn_log_fn). */
void journal_of_library(void *arg, enum tn_log_level level, const char *where, const char *text);

#endif
