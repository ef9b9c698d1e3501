/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto status [SOCKET]`: one screen of what a cache does that a process serves, drawn again every two seconds.
 *
 * Attaches as any process does, and asks for statistics alone. When the owner ends, the screen says so and waits for the next one.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <tenuto/session.h>

#include "cli.h"
#include "status.h"

#define REFRESH_SECONDS 2
#define PATIENCE_NS 10000000000ull /* for an owner that opens its stores */
#define PATH_BYTES 108u /* of sockaddr_un */

struct status_args {
	bool once, json;
	const char *token_file;
};

static const struct cli_opt options[] = {
	{"once", NULL, NULL, "print once, with rates since the cache was opened, and end", CLI_FLAG, offsetof(struct status_args, once), 0, 0},
	{"json", NULL, NULL, "print JSON: with --once an object, else an object per line", CLI_FLAG, offsetof(struct status_args, json), 0, 0},
	{"token-file", "FILE", NULL, "what its first line has lets this user attach, as a token of an engine does", CLI_STRING,
	 offsetof(struct status_args, token_file), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "status",
	.operands = "[SOCKET | DIR]",
	.about = "Shows what a cache does that tenutod or an engine serves at SOCKET, or that has the store in DIR open, every two seconds until "
		 "it is interrupted. Without either it looks for tenuto.sock in $XDG_RUNTIME_DIR and in /run/tenuto. Off a terminal it prints a line each time. When the owner "
		 "ends, it says so and waits for the next one; with --once it ends with 3 if nobody serves there. A user who is let use some tenants sees "
		 "the statistics of those alone.",
	.opts = options,
	.max_operands = 1,
};

/* ---- JSON ------------------------------------------------------------------------------------------ */

static json_t *latency_json(const struct status *s, uint32_t i)
{
	json_t *o = json_pack("{s:I, s:f}", "count", (json_int_t)s->latency[i].count, "sum", (double)s->latency[i].sum_ns * 1e-9);
	double p50 = status_quantile(s, NULL, i, 0.5), p99 = status_quantile(s, NULL, i, 0.99);

	json_object_set_new(o, "p50", p50 < 0 ? json_null() : json_real(p50));
	json_object_set_new(o, "p99", p99 < 0 ? json_null() : json_real(p99));
	return o;
}

/* Samples by the names of /metrics; latencies with their quantiles since the cache was opened. */
static json_t *to_json(const struct status *s, const char *socket)
{
	json_t *metrics = json_object(), *latencies;
	uint64_t budget = s->owner.write_bytes_per_day;
	double per_day = status_written_per_day(s), time;
	char path[1024];
	struct timespec now;

	socket = cli_utf8(path, sizeof(path), socket);
	clock_gettime(CLOCK_REALTIME, &now);
	time = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
	for (size_t i = 0; i < s->n; i++)
		json_object_set_new(metrics, s->samples[i].key, isfinite(s->samples[i].value) ? json_real(s->samples[i].value) : json_null());
	if (s->partial)
		return json_pack("{s:s, s:f, s:s, s:b, s:o}", "version", tn_version(), "time", time, "socket", socket, "tenants_only", (int)s->tenants_only, "metrics",
				 metrics);
	latencies = json_object();
	for (uint32_t i = 0; i < STATUS_LATENCIES; i++)
		json_object_set_new(latencies, status_latencies[i].key, latency_json(s, i));
	return json_pack("{s:s, s:f, s:s, s:I, s:I, s:o, s:o, s:o, s:o}", "version", tn_version(), "time", time, "socket", socket, "pid", (json_int_t)s->owner.pid,
			 "written_bytes", (json_int_t)status_written(s), "written_bytes_per_day", per_day < 0 ? json_null() : json_real(per_day), "budget_bytes_per_day",
			 budget ? json_integer((json_int_t)budget) : json_null(), "latencies", latencies, "metrics", metrics);
}

static int print_json(const struct status *s, const char *socket, bool once)
{
	json_t *o = to_json(s, socket);

	if (once)
		return cli_json(o);
	if (!o)
		return cli_error(CLI_ENVIRONMENT, "out of memory for the result");
	json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(12));
	json_decref(o);
	putchar('\n');
	return cli_finish(CLI_OK);
}

/* ---- the screen ------------------------------------------------------------------------------------ */

/* From the top left corner on, cut to the terminal's size, so that nothing scrolls. */
static int draw(char *text)
{
	struct winsize size = {0};
	int lines, columns;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || size.ws_row == 0 || size.ws_col == 0)
		size = (struct winsize){.ws_row = 24, .ws_col = 80};
	lines = size.ws_row - 1;
	columns = size.ws_col;
	fputs("\033[H", stdout);
	for (char *line = text, *end; lines > 0 && (end = strchr(line, '\n')); line = end + 1, lines--)
		printf("%.*s\033[K\n", (int)(end - line < columns ? end - line : columns), line);
	fputs("\033[J", stdout);
	return cli_finish(CLI_OK);
}

static int print_screen(const struct status *s, const struct status *before, const char *socket, bool tty)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);
	int rc;

	if (!out)
		return cli_error(CLI_ENVIRONMENT, "out of memory for the screen");
	status_print(s, before, socket, out);
	if (fclose(out)) {
		free(text);
		return cli_error(CLI_ENVIRONMENT, "out of memory for the screen");
	}
	if (tty) {
		rc = draw(text);
	} else {
		fputs(text, stdout);
		rc = cli_finish(CLI_OK);
	}
	free(text);
	return rc;
}

static int print(const struct status_args *a, const struct status *s, const struct status *before, const char *socket)
{
	bool tty = isatty(STDOUT_FILENO);

	if (a->json)
		return print_json(s, socket, a->once);
	if (a->once || tty)
		return print_screen(s, before, socket, tty && !a->once);
	status_print_line(s, before, stdout);
	return cli_finish(CLI_OK);
}

/* ---- the cache ------------------------------------------------------------------------------------- */

static void wait_for_refresh(void)
{
	const struct timespec t = {.tv_sec = REFRESH_SECONDS};

	if (!cli_interrupted())
		nanosleep(&t, NULL); /* a signal ends it */
}

static int attach(const char *path, const char *token, struct tn_cache **cache)
{
	const struct tn_attach_opts opts = {.size = sizeof(opts), .deadline_ns = cli_now_ns() + PATIENCE_NS, .token = token};
	struct stat st;

	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return tn_cache_attach_store(path, "default", &opts, cache);
	return tn_cache_attach(path, &opts, cache);
}

/* What is no socket never becomes one; CLI_GO: a socket, a directory, or nothing yet. */
static int check_place(const char *path)
{
	struct stat st;

	if (stat(path, &st) || S_ISDIR(st.st_mode) || S_ISSOCK(st.st_mode))
		return CLI_GO;
	return cli_error(CLI_USAGE, "%s: is no socket and no directory; give the socket at which tenutod serves, or a directory of its stores", path);
}

static bool has_no_store(const char *path)
{
	char store[PATH_BYTES + sizeof("/default/tenuto.store")];
	struct stat st;

	snprintf(store, sizeof(store), "%s/default/tenuto.store", path);
	return stat(path, &st) == 0 && S_ISDIR(st.st_mode) && access(store, F_OK) && errno == ENOENT;
}

/* Whether a later attempt may find an owner. */
static bool owner_may_come(int rc)
{
	return rc == -ENOENT || rc == -ECONNREFUSED || rc == -ESHUTDOWN || rc == -ETIMEDOUT || rc == -EAGAIN;
}

static void say_gone(const char *socket, bool *said)
{
	if (!*said && has_no_store(socket))
		cli_error(CLI_ENVIRONMENT, "no store in %s yet (%s/default/tenuto.store is not there): waits for an owner that makes it (Ctrl-C ends)",
			  socket, socket);
	else if (!*said)
		cli_error(CLI_ENVIRONMENT, "nobody serves a cache at %s now: waits until tenutod or another owner does (Ctrl-C ends; --once does not wait)", socket);
	*said = true;
}

/* Until the owner is gone, or the user wants no more; CLI_GO: the owner is gone. */
static int show(const struct status_args *a, struct tn_cache *cache, const char *socket)
{
	struct status s = {0}, before = {0};
	int rc = 0, out = CLI_OK;

	if (!a->once && !a->json && isatty(STDOUT_FILENO))
		fputs("\033[2J", stdout);
	while (out == CLI_OK && !cli_interrupted()) {
		rc = status_take(cache, &s);
		if (rc)
			break;
		out = print(a, &s, before.n ? &before : NULL, socket);
		if (a->once)
			break;
		status_free(&before);
		before = s;
		memset(&s, 0, sizeof(s));
		wait_for_refresh();
	}
	status_free(&s);
	status_free(&before);
	if (rc == -ESHUTDOWN && !a->once)
		return CLI_GO;
	return rc ? cli_fail(rc, NULL) : out;
}

static int find_owner(int operands, char **argv, char path[PATH_BYTES])
{
	if (operands == 0 && !cli_default_socket(true, path, PATH_BYTES) && !cli_default_socket(false, path, PATH_BYTES))
		return cli_error(CLI_ENVIRONMENT, "no cache is served at /run/tenuto/tenuto.sock or at $XDG_RUNTIME_DIR/tenuto.sock; start "
				 "tenutod, or give the socket of its owner");
	if (operands && (size_t)snprintf(path, PATH_BYTES, "%s", argv[1]) >= PATH_BYTES)
		return cli_error(CLI_USAGE, "%s: a path may have %u bytes", argv[1], PATH_BYTES - 1);
	return CLI_GO;
}

static int read_token(const char *path, char token[TN_SERVE_TOKEN_BYTES])
{
	FILE *f = path ? fopen(path, "re") : NULL;

	if (!path)
		return CLI_GO;
	if (!f)
		return cli_error(CLI_USAGE, "--token-file %s: %s", path, strerror(errno));
	if (!fgets(token, TN_SERVE_TOKEN_BYTES, f))
		token[0] = '\0';
	token[strcspn(token, "\n")] = '\0';
	fclose(f);
	return token[0] ? CLI_GO : cli_error(CLI_USAGE, "--token-file %s: its first line is empty", path);
}

int cmd_status(int argc, char **argv)
{
	char path[PATH_BYTES], token[TN_SERVE_TOKEN_BYTES] = "";
	struct status_args a = {0};
	bool said_gone = false;
	int n, rc = cli_parse(&verb, argc, argv, &a, &n);

	if (rc == CLI_GO)
		rc = read_token(a.token_file, token);
	if (rc == CLI_GO)
		rc = find_owner(n, argv, path);
	if (rc == CLI_GO)
		rc = check_place(path);
	if (rc != CLI_GO)
		return rc;
	cli_catch_interrupts();
	while (rc == CLI_GO && !cli_interrupted()) {
		struct tn_cache *cache = NULL;
		int attached = attach(path, a.token_file ? token : NULL, &cache);

		if (attached == 0) {
			n = 0; /* it was there: another owner may come */
			said_gone = false;
			rc = show(&a, cache, path);
			tn_cache_close(cache);
			if (rc != CLI_GO)
				break;
		} else if (attached == -ENOENT && n > 0 && !said_gone && access(path, F_OK)) {
			return cli_error(CLI_USAGE, "%s: %s; give the socket at which tenutod serves, or a directory of its stores", path, strerror(ENOENT));
		} else if (a.once && has_no_store(path)) {
			return cli_error(CLI_ENVIRONMENT, "no store in %s: %s/default/tenuto.store is not there", path, path);
		} else if (a.once && owner_may_come(attached)) {
			return cli_error(CLI_ENVIRONMENT, "nobody serves a cache there: %s", tn_error_last()->text);
		} else if (!owner_may_come(attached)) {
			return cli_fail(attached, NULL);
		}
		say_gone(path, &said_gone);
		wait_for_refresh();
	}
	return rc == CLI_GO ? CLI_OK : rc; /* an interrupt is how it ends, and hides no failure */
}
