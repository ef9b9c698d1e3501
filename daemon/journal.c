/* SPDX-License-Identifier: Apache-2.0 */
#include "journal.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 1024u
#define LINES 256u
#define LAST_SECONDS 1 /* that the end waits for lines to be taken */

struct line {
	enum tn_log_level level;
	uint64_t lost; /* just before it */
	char text[LINE_BYTES];
};

static bool to_journal;
static enum tn_log_level most = TN_LOG_INFO; /* shared */

/* Lines that wait, from taken to put; the lock is never held during a write. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t filled, ended;
	pthread_t thread;
	bool runs, ends;
	uint64_t put, taken;
	uint64_t lost;	   /* since the last one that was put */
	uint64_t all_lost; /* since the start */
	struct line line[LINES];
} lines = {.lock = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER};

/* ---- the thread -------------------------------------------------------------------------------------- */

/* Waits as long as it takes. False: nobody will take it. */
static bool write_whole(const char *text, size_t bytes)
{
	struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};

	while (bytes > 0) {
		ssize_t n = write(STDERR_FILENO, text, bytes);

		if (n < 0 && errno == EAGAIN) /* whoever shares the file has set O_NONBLOCK */
			poll(&out, 1, -1);
		else if (n < 0 && errno != EINTR)
			return false;
		text += n > 0 ? n : 0;
		bytes -= n > 0 ? (size_t)n : 0;
	}
	return true;
}

static bool write_line(enum tn_log_level level, const char *text)
{
	static const char *const priority[] = {SD_ERR, SD_WARNING, SD_INFO, SD_DEBUG};
	static const char *const name[] = {"tenutod: error: ", "tenutod: warning: ", "tenutod: ", "tenutod: debug: "};
	char whole[LINE_BYTES + 32];
	int n = snprintf(whole, sizeof(whole), "%s%s\n", to_journal ? priority[level] : name[level], text);

	return write_whole(whole, (size_t)n);
}

/* True: the next line, or how many were lost when no line has come since; *l is a copy. */
static bool take(struct line *l, bool *is_line)
{
	pthread_mutex_lock(&lines.lock);
	while (lines.put == lines.taken && !lines.lost && !lines.ends)
		pthread_cond_wait(&lines.filled, &lines.lock);
	*is_line = lines.put != lines.taken;
	if (*is_line) {
		*l = lines.line[lines.taken++ % LINES];
	} else {
		l->lost = lines.lost;
		lines.lost = 0;
	}
	pthread_mutex_unlock(&lines.lock);
	return *is_line || l->lost;
}

static void *write_lines(void *arg)
{
	static struct line l;
	uint64_t untold = 0;
	char note[96];
	bool is_line;

	while (take(&l, &is_line)) {
		untold += l.lost;
		snprintf(note, sizeof(note), "%" PRIu64 " log lines are missing here: nobody took them", untold);
		if (untold && write_line(TN_LOG_WARN, note))
			untold = 0;
		if (is_line && !write_line(l.level, l.text)) {
			untold++;
			__atomic_add_fetch(&lines.all_lost, 1, __ATOMIC_RELAXED);
		}
	}
	pthread_mutex_lock(&lines.lock);
	lines.runs = false;
	pthread_cond_signal(&lines.ended);
	pthread_mutex_unlock(&lines.lock);
	return NULL;
}

/* ---- any thread -------------------------------------------------------------------------------------- */

int journal_open(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	pthread_condattr_t monotonic;
	struct stat st;
	int rc;

	/* The variable stays when stderr is sent elsewhere: systemd.exec(5) says to compare. */
	to_journal = stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 && fstat(2, &st) == 0 && st.st_dev == device &&
		     st.st_ino == inode;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&lines.ended, &monotonic);
	pthread_condattr_destroy(&monotonic);
	rc = pthread_create(&lines.thread, NULL, write_lines, NULL);
	lines.runs = rc == 0;
	return -rc;
}

void journal_close(void)
{
	struct timespec until;
	bool ended;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += LAST_SECONDS;
	pthread_mutex_lock(&lines.lock);
	lines.ends = true;
	pthread_cond_signal(&lines.filled);
	while (lines.runs && rc == 0)
		rc = pthread_cond_timedwait(&lines.ended, &lines.lock, &until);
	ended = !lines.runs;
	pthread_mutex_unlock(&lines.lock);
	if (ended)
		pthread_join(lines.thread, NULL);
}

void journal_set_level(enum tn_log_level level)
{
	__atomic_store_n(&most, level, __ATOMIC_RELAXED);
}

uint64_t journal_lost(void)
{
	return __atomic_load_n(&lines.all_lost, __ATOMIC_RELAXED);
}

void journal_line(enum tn_log_level level, const char *fmt, ...)
{
	char text[LINE_BYTES];
	va_list ap;

	if (level > __atomic_load_n(&most, __ATOMIC_RELAXED))
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	pthread_mutex_lock(&lines.lock);
	if (lines.put - lines.taken < LINES) {
		struct line *l = &lines.line[lines.put++ % LINES];

		l->level = level;
		l->lost = lines.lost;
		memcpy(l->text, text, strlen(text) + 1);
		lines.lost = 0;
	} else {
		lines.lost++;
		__atomic_add_fetch(&lines.all_lost, 1, __ATOMIC_RELAXED);
	}
	pthread_cond_signal(&lines.filled);
	pthread_mutex_unlock(&lines.lock);
}

void journal_of_library(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	journal_line(level, "%s", text);
}
