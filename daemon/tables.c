/* SPDX-License-Identifier: Apache-2.0 */
/* The files of slack tables. Clients decide how many tables there are and what is in them: both are bounded here. */
#include "tables.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tenuto/slack.h>

#include "../cli/cli.h"
#include "config.h"
#include "journal.h"

#define SPACES 1024u	   /* of a cache */
#define FILES 1024u	   /* one more takes the place of the one that was written longest ago */
#define CELLS 16384u	   /* larger tables are not kept: an engine's own have some hundreds */
#define FILE_BYTES (1u << 20) /* of so many cells */
#define WRITE_EVERY_NS UINT64_C(60000000000)
#define NAME_BYTES 64
#define SUFFIX ".slack"

enum state {
	UNKNOWN, /* nobody has had it open */
	OPENED,	 /* its file was not looked for */
	FOUND,	 /* and is to be given */
	FOLLOWED,
	CLOSED, /* what it knew may still be to be written */
};

/* Of a space, by its number. */
struct entry {
	enum state state;
	struct tn_key name;
	struct tn_slack *found;
	struct tn_slack *taken; /* what it knew last and is still to be written; NULL: nothing */
	uint64_t changes;	/* of the space's table, up to what was taken */
	uint64_t written_ns;
};

struct tables {
	const char *dir;
	int told; /* the last log line about the directory: 0: it is used, -errno: why it is not, 1: none yet */
	struct entry entry[SPACES];
};

int tables_create(const char *dir, struct tables **out)
{
	struct tables *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	t->dir = dir;
	t->told = 1;
	*out = t;
	return 0;
}

static void forget(struct entry *e)
{
	tn_slack_destroy(e->found);
	tn_slack_destroy(e->taken);
	*e = (struct entry){.state = UNKNOWN};
}

void tables_free(struct tables *t)
{
	for (uint32_t i = 0; t && i < SPACES; i++)
		forget(&t->entry[i]);
	free(t);
}

/* ---- with the cache -------------------------------------------------------------------------------------- */

/* What the space knows now is in the entry, if it is new and not too large. */
static void take(struct entry *e, struct tn_space *space, uint64_t changes)
{
	struct tn_slack *table;

	if (tn_space_slack_copy(space, &table))
		return;
	tn_slack_destroy(e->taken);
	e->taken = table;
	e->changes = changes;
}

/* The owner's thread copies nothing that has not changed or is not kept. */
static void follow(struct entry *e, struct tn_space *space)
{
	uint64_t changes, cells;

	if (tn_space_slack_changes(space, &changes, &cells))
		return;
	if (e->state == FOUND && changes == 0) {
		if (tn_space_slack(space, e->found))
			journal_line(TN_LOG_WARN, "slack table: %s", tn_error_last()->text);
		else
			e->changes = 1; /* what the file has */
	} else if (e->state == FOLLOWED && changes != e->changes && cells <= CELLS) {
		take(e, space, changes);
	}
	tn_slack_destroy(e->found);
	e->found = NULL;
	e->state = FOLLOWED;
}

void tables_exchange(struct tables *t, struct tn_cache *cache)
{
	for (uint32_t i = 0; i < SPACES; i++) {
		struct entry *e = &t->entry[i];
		struct tn_space *space;
		struct tn_key name;

		if (tn_space_at(cache, i, &space, &name)) {
			e->state = e->state == UNKNOWN ? UNKNOWN : CLOSED;
			continue;
		}
		if (e->state == UNKNOWN) {
			e->state = OPENED;
			e->name = name;
		} else if (memcmp(&name, &e->name, sizeof(name)) != 0) {
			e->state = CLOSED; /* the number is another space's by now, which waits until this one is written */
		} else if (e->state != OPENED && e->state != CLOSED) {
			follow(e, space);
		}
		tn_space_close(space);
	}
}

/* ---- files ----------------------------------------------------------------------------------------------- */

static int path_of(const struct tables *t, const struct entry *e, char path[4096])
{
	int n = snprintf(path, 4096, "%s/%016" PRIx64 "%016" PRIx64 SUFFIX, t->dir, e->name.word[0], e->name.word[1]);

	return n < 4096 ? 0 : -ENAMETOOLONG;
}

/* The bytes of a file, with a NUL behind them. Return: how many, or -errno. */
static long read_file(const char *path, char **out)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat st;
	ssize_t n = -1;
	long rc;

	if (fd < 0)
		return -errno;
	*out = malloc(FILE_BYTES + 1);
	if (*out && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		n = read(fd, *out, FILE_BYTES + 1);
	rc = n < 0 ? -EIO : n > (ssize_t)FILE_BYTES ? -EFBIG : (long)n;
	if (rc < 0) {
		free(*out);
		*out = NULL;
	}
	close(fd);
	return rc;
}

/* One line for each change. why: of an error, what to do about it, or NULL. */
static void log_directory(struct tables *t, int rc, const char *why)
{
	if (rc == t->told)
		return;
	t->told = rc;
	if (rc == 0)
		journal_line(TN_LOG_INFO, "slack tables are kept in '%s'", t->dir);
	else if (why)
		journal_line(TN_LOG_WARN, "%s; no tables are kept until then", why);
	else
		journal_line(TN_LOG_WARN, "slack: '%s': a table cannot be kept: %s", t->dir, strerror(-rc));
}

static void look_for(struct tables *t, struct entry *e)
{
	char path[4096], *text = NULL;
	long n = path_of(t, e, path);
	int rc;

	e->state = FOLLOWED;
	if (n == 0)
		n = read_file(path, &text);
	if (n < 0 && n == t->told)
		return; /* a warning has told the cause */
	if (n < 0) {
		journal_line(n == -ENOENT ? TN_LOG_INFO : TN_LOG_WARN, "slack table: %s (%s)", path, n == -ENOENT ? "new" : strerror((int)-n));
		return;
	}
	rc = tn_slack_parse(text, (size_t)n, &e->found);
	if (rc) {
		journal_line(TN_LOG_WARN, "slack table: %s (ignored: %s)", path, tn_error_last()->text);
	} else {
		journal_line(TN_LOG_INFO, "slack table: %s (restored)", path);
		e->state = FOUND;
	}
	free(text);
}

static bool is_table(const char *name)
{
	size_t n = strlen(name);

	return n > strlen(SUFFIX) && n < NAME_BYTES && strcmp(name + n - strlen(SUFFIX), SUFFIX) == 0;
}

/* Before a new file: so that clients with ever new spaces do not fill the disk. */
static void make_place(const struct tables *t)
{
	DIR *dir = opendir(t->dir);
	char oldest[NAME_BYTES] = "";
	struct timespec when = {0};
	struct dirent *d;
	struct stat st;
	uint32_t n = 0;

	while (dir && (d = readdir(dir))) {
		if (!is_table(d->d_name) || fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW))
			continue;
		n++;
		if (oldest[0] && (st.st_mtim.tv_sec > when.tv_sec || (st.st_mtim.tv_sec == when.tv_sec && st.st_mtim.tv_nsec >= when.tv_nsec)))
			continue;
		snprintf(oldest, sizeof(oldest), "%s", d->d_name);
		when = st.st_mtim;
	}
	if (n >= FILES)
		unlinkat(dirfd(dir), oldest, 0);
	if (dir)
		closedir(dir);
}

/* NULL: there is no memory. */
static char *text_of(const struct tn_slack *table)
{
	long n = tn_slack_print(table, NULL, 0);
	char *text = n > 0 ? malloc((size_t)n + 1) : NULL;

	if (text)
		tn_slack_print(table, text, (size_t)n + 1);
	return text;
}

/* As a whole or not at all. */
static int write_file(const struct tables *t, const struct entry *e, const char *text)
{
	size_t n = strlen(text);
	char path[4096], fresh[4096];
	bool good;
	int fd, rc = path_of(t, e, path);

	if (rc || snprintf(fresh, sizeof(fresh), "%s/.new", t->dir) >= (int)sizeof(fresh))
		return -ENAMETOOLONG;
	if (mkdir(t->dir, 0700) && errno != EEXIST)
		return -errno;
	if (access(path, F_OK))
		make_place(t);
	fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	errno = EIO;
	good = write(fd, text, n) == (ssize_t)n;
	rc = good && rename(fresh, path) == 0 ? 0 : -errno;
	close(fd);
	return rc;
}

/* What a client made the space forget stays in the file. */
static void keep(struct tables *t, struct entry *e, uint64_t now_ns)
{
	bool knows = tn_slack_window(e->taken, 1, 0, 0) != 0;
	char *text = knows ? text_of(e->taken) : NULL;
	int rc = text ? write_file(t, e, text) : knows ? -ENOMEM : 0;

	free(text);
	e->written_ns = now_ns;
	log_directory(t, rc, NULL);
	if (rc == 0) {
		tn_slack_destroy(e->taken);
		e->taken = NULL;
	}
}

void tables_sync(struct tables *t, bool all)
{
	uint64_t now = cli_now_ns();
	char why[CONFIG_WHY];

	if (t->told > 0)
		log_directory(t, config_check_slack(t->dir, why), why);
	for (uint32_t i = 0; i < SPACES; i++) {
		struct entry *e = &t->entry[i];

		if (e->taken && (all || e->state == CLOSED || now - e->written_ns >= WRITE_EVERY_NS))
			keep(t, e, now);
		if (e->state == CLOSED)
			forget(e);
		else if (e->state == OPENED)
			look_for(t, e);
	}
}
