/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenutod`: owns a cache for the processes of a node. Opens the cache, tells its metrics, closes it in order.
 *
 * Stays in the foreground. SIGTERM and SIGINT end it, after everything is durable; SIGHUP has it read its configuration again. It uses the
 * library through its public headers only, as any other program would.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include <tenuto/session.h>

#include "config.h"
#include "http.h"
#include "journal.h"

/* Not given on the command line. */
#define NO_BYTES UINT64_MAX

struct args {
	const char *config;
	struct cli_strings dirs;
	uint64_t host_bytes, disk_bytes;
	const char *socket, *listen;
	bool print_config, check_config;
};

#define AT(member) offsetof(struct args, member)

static const struct cli_opt options[] = {
	{"config", "FILE", NULL, "settings; those of the command line come before the file's", CLI_STRING, AT(config), 0, 0},
	{"dir", "DIR", NULL, "directory of a device, or a raw drive as nvme:0000:03:00.0; may be repeated", CLI_STRINGS, AT(dirs), 0, 0},
	{"host-bytes", "SIZE", "0", "host memory for blocks, as 64GiB", CLI_SIZE, AT(host_bytes), 0, 1ull << 46},
	{"disk-bytes", "SIZE", "a tenth of the free space; 15/16 of a raw drive", "capacity on disk of a new store", CLI_SIZE, AT(disk_bytes), 0, 1ull << 56},
	{"socket", "PATH", "auto", "Unix socket at which processes of the same user attach; off: none", CLI_STRING, AT(socket), 0, 0},
	{"listen", "ADDRESS", "127.0.0.1:9470", "of /metrics, /healthz and /readyz; off: none", CLI_STRING, AT(listen), 0, 0},
	{"print-config", NULL, NULL, "print the settings with comments, as a file for --config, and exit", CLI_FLAG, AT(print_config), 0, 0},
	{"check-config", NULL, NULL, "say whether the settings are right and what they name is there, and exit", CLI_FLAG, AT(check_config), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "",
	.about = "Owns a cache of KV blocks for the processes of a node, and tells its metrics. Stays in the foreground until SIGTERM or "
		 "SIGINT, then makes everything durable and ends with 0. SIGHUP reads the configuration again.",
	.opts = options,
};

/* ---- configuration --------------------------------------------------------------------------------- */

/* A setting of the command line; 0 or -EINVAL. */
static int set_option(struct config *c, const char *name, const char *value, char *why)
{
	const struct config_setting *s = config_settings;
	char what[CONFIG_WHY];

	while (strcmp(s->name, name) != 0)
		s++;
	if (config_set(c, s, value, what) == 0)
		return 0;
	snprintf(why, CONFIG_WHY, "--%s: %.600s", name, what);
	return -EINVAL;
}

/* The file, then the command line: 0, or -errno and why. config_free either way. */
static int read_config(struct config *c, const struct args *a, char *why)
{
	int rc = 0;

	config_init(c);
	if (a->config)
		rc = config_load(c, a->config, why);
	if (rc == 0 && a->socket)
		rc = set_option(c, "socket", a->socket, why);
	if (rc == 0 && a->listen)
		rc = set_option(c, "listen", a->listen, why);
	if (a->dirs.n)
		c->dirs = a->dirs;
	if (a->host_bytes != NO_BYTES)
		c->host_bytes = a->host_bytes;
	if (a->disk_bytes != NO_BYTES)
		c->disk_bytes = a->disk_bytes;
	return rc;
}

/* line 0: the setting is not in the file any more. */
static void warn_changed(const char *path, uint32_t line, const char *name)
{
	char where[16] = "";

	if (line)
		snprintf(where, sizeof(where), ":%u", line);
	journal_line(TN_LOG_WARN, "%s%s: %s has changed: it counts when tenutod starts again", path, where, name);
}

/* The file's rules count from here on, whatever it says of the socket, which stays as it is. False: they do not. */
static bool reload_clients(struct tn_cache *cache, const struct config *c)
{
	const struct tn_serve_opts *opts;
	struct client_rules *rules;
	char why[CONFIG_WHY];
	int rc;

	if (clients_rules(&c->clients, &rules, &opts, why, sizeof(why))) {
		journal_line(TN_LOG_ERROR, "clients: %s; the rules stay as they were", why);
		return false;
	}
	rc = tn_cache_serve_anew(cache, opts);
	clients_rules_free(rules);
	if (rc && (rc != -EINVAL || c->clients.n > 0)) /* a cache that is not served has no rules */
		journal_line(TN_LOG_WARN, "clients: %s; the rules stay as they were", tn_error_last()->text);
	return rc == 0;
}

static void reload(struct config *running, const struct args *a, struct tn_cache *cache)
{
	char why[CONFIG_WHY];
	char rules[48] = "";
	struct config c;
	int rc = read_config(&c, a, why);

	if (rc == 0)
		rc = config_check(&c, why);
	if (rc) {
		journal_line(TN_LOG_ERROR, "%s; the settings stay as they were", why);
		config_free(&c);
		return;
	}
	for (const struct config_setting *s = config_settings; s->name; s++)
		if (!s->live && !config_same(s, running, &c))
			warn_changed(a->config, c.line[s - config_settings], s->name);
	if (reload_clients(cache, &c))
		snprintf(rules, sizeof(rules), ", %u rules for clients", c.clients.n);
	running->log_level = c.log_level; /* one of the table's texts */
	journal_set_level(config_log_level(running));
	journal_line(TN_LOG_INFO, "the configuration was read again; log_level is %s%s", running->log_level, rules);
	config_free(&c);
}

/* ---- the service ----------------------------------------------------------------------------------- */

static void notify_reloading(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000);
}

/* What systemd listens on in our place: tenutod.socket and tenutod-metrics.socket; -1: none. */
struct given {
	int attach, metrics;
};

/* Other sockets are not used, and closed. */
static struct given take_sockets(void)
{
	struct given given = {-1, -1};
	char **name = NULL;
	int n = sd_listen_fds_with_names(1, &name);

	for (int i = 0; i < n; i++) {
		int *of = strcmp(name[i], "metrics") == 0 ? &given.metrics : strcmp(name[i], "attach") == 0 ? &given.attach : NULL;

		if (of && *of < 0) {
			*of = SD_LISTEN_FDS_START + i;
		} else {
			journal_line(TN_LOG_WARN, of ? "systemd gives a second socket '%s'" : "systemd gives a socket '%s', which tenutod does not know",
				     name[i]);
			close(SD_LISTEN_FDS_START + i);
		}
		free(name[i]);
	}
	free(name);
	return given;
}

/* The path at which processes are to attach by the settings; false: nowhere. */
static bool socket_path(const struct config *c, char path[CONFIG_SOCKET_BYTES + 1])
{
	bool by_default = strcmp(c->socket, "auto") == 0;

	if (strcmp(c->socket, "off") == 0)
		return false;
	if (by_default && geteuid() == 0)
		mkdir("/run/tenuto", 0755); /* if it fails, it shows when the socket is made */
	if (by_default)
		return cli_default_socket(false, path, CONFIG_SOCKET_BYTES + 1);
	snprintf(path, CONFIG_SOCKET_BYTES + 1, "%s", c->socket);
	return true;
}

static bool is_served(const char *path)
{
	const struct tn_attach_opts opts = {.size = sizeof(opts), .deadline_ns = cli_now_ns() + 1000000000u};
	struct tn_cache *other;
	int rc = tn_cache_attach(path, &opts, &other);

	if (rc == 0)
		tn_cache_close(other);
	return rc != -ENOENT && rc != -ECONNREFUSED && rc != -EACCES;
}

/* Whether SIGTERM or SIGINT has come, or comes within so long. */
static bool told_to_end(long patience_ns)
{
	const struct timespec patience = {0, patience_ns};
	sigset_t ends;
	int sig;

	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGINT);
	sig = sigtimedwait(&ends, NULL, &patience);
	if (sig < 0)
		return false;
	journal_line(TN_LOG_INFO, "SIG%s: ends; the cache was not opened", sigabbrev_np(sig));
	sd_notify(0, "STOPPING=1");
	return true;
}

/*
 * Before stores are opened, which may take long. An owner that is about to end is waited for as long as for its stores. 0, -EADDRINUSE,
 * -ECANCELED (told to end).
 */
static int await_socket(const char *path, uint64_t timeout_ms)
{
	uint64_t until = cli_now_ns() + timeout_ms * 1000000u;
	bool told = false;

	while (is_served(path)) {
		if (cli_now_ns() >= until) {
			journal_line(TN_LOG_ERROR, "socket %s: another process serves there; end it, or give another socket", path);
			return -EADDRINUSE;
		}
		if (!told)
			journal_line(TN_LOG_WARN, "socket %s: another process serves there; waits up to %" PRIu64 " ms for its end", path,
				     timeout_ms);
		told = true;
		if (told_to_end(50000000))
			return -ECANCELED;
	}
	return 0;
}

/* Lets processes attach: at systemd's socket, or at the one of the settings. */
static int serve_by(struct tn_cache *cache, const struct config *c, int given, const struct tn_serve_opts *opts)
{
	char path[CONFIG_SOCKET_BYTES + 1];
	int rc;

	if (given >= 0) {
		rc = tn_cache_serve_socket(cache, given, opts);
		if (rc == 0)
			journal_line(TN_LOG_INFO, "processes attach at the socket that systemd gives");
		return rc;
	}
	if (strcmp(c->socket, "off") == 0) {
		journal_line(TN_LOG_INFO, "no process can attach: socket is off");
		return 0;
	}
	if (!socket_path(c, path)) {
		journal_line(TN_LOG_WARN, "no process can attach: neither $RUNTIME_DIRECTORY nor $XDG_RUNTIME_DIR nor /run/tenuto is a directory "
			     "that this user may write; give a socket");
		return 0;
	}
	rc = tn_cache_serve(cache, path, opts);
	if (rc == 0)
		journal_line(TN_LOG_INFO, "processes attach at %s", path);
	return rc;
}

static int serve(struct tn_cache *cache, const struct config *c, int given)
{
	const struct tn_serve_opts *opts;
	struct client_rules *rules;
	char why[CONFIG_WHY];
	int rc = clients_rules(&c->clients, &rules, &opts, why, sizeof(why));

	if (rc) {
		journal_line(TN_LOG_ERROR, "clients: %s", why);
		return rc;
	}
	rc = serve_by(cache, c, given, opts);
	clients_rules_free(rules);
	return rc;
}

/* Until SIGTERM or SIGINT; their number. */
static int wait_for_end(const sigset_t *signals, struct config *running, const struct args *a, struct tn_cache *cache)
{
	int sig = 0;

	for (;;) {
		sigwait(signals, &sig);
		if (sig != SIGHUP)
			return sig;
		notify_reloading();
		reload(running, a, cache);
		sd_notify(0, "READY=1");
	}
}

static int fail(int rc, const char *what)
{
	const struct tn_error *e = tn_error_last();

	journal_line(TN_LOG_ERROR, "%s: %s", what, e->code == rc ? e->text : strerror(-rc));
	return (int)cli_exit_of(rc);
}

/* With the server of the metrics. */
static int run_cache(struct config *c, const struct args *a, const sigset_t *signals, struct http *http, int given)
{
	char path[CONFIG_SOCKET_BYTES + 1], why[CONFIG_WHY];
	struct tn_cache_opts opts;
	struct tn_cache *cache;
	uint64_t blocks = 0;
	int rc, sig;

	if (given < 0 && (rc = config_check_socket(c->socket, why))) { /* before stores are made */
		journal_line(TN_LOG_ERROR, "%s", why);
		return (int)cli_exit_of(rc);
	}
	if (given < 0 && socket_path(c, path) && (rc = await_socket(path, c->dirs.n > 0 ? c->lock_timeout_ms : 0)))
		return rc == -ECANCELED ? CLI_OK : (int)cli_exit_of(rc);
	if (told_to_end(0))
		return CLI_OK;
	config_cache_opts(c, &opts);
	opts.log = journal_of_library;
	opts.log_level = TN_LOG_DEBUG; /* journal_set_level chooses, and may choose anew */
	sd_notify(0, "STATUS=opening the cache");
	rc = tn_cache_open(&opts, &cache);
	if (rc)
		return fail(rc, "cannot open the cache");
	tn_cache_stat(cache, "blocks", &blocks);

	/* Whatever reaches the cache from outside begins here, before systemd is told; the sessions end when the cache closes. */
	rc = serve(cache, c, given);
	if (rc) {
		rc = fail(rc, "cannot serve the cache");
		tn_cache_close(cache);
		return rc;
	}
	http_cache_is_open(http, cache);
	journal_line(TN_LOG_INFO, "ready: %" PRIu64 " blocks are there", blocks);
	sd_notify(0, "READY=1\nSTATUS=ready");
	sig = wait_for_end(signals, c, a, cache);
	journal_line(TN_LOG_INFO, "SIG%s: makes everything durable and ends", sigabbrev_np(sig));
	sd_notify(0, "STOPPING=1\nSTATUS=closing the cache");
	http_cache_closes(http);

	rc = tn_cache_close(cache);
	if (rc)
		return fail(rc, "the cache is closed, and not all of it is durable");
	journal_line(TN_LOG_INFO, "the cache is closed");
	return CLI_OK;
}

static int run(struct config *c, const struct args *a)
{
	struct given given;
	struct http *http;
	sigset_t signals;
	int rc;

	/* Before any thread begins, so that all of them leave the signals to sigwait. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
	journal_open();
	journal_set_level(config_log_level(c));
	given = take_sockets();
	rc = http_start(c->listen, given.metrics, &http);
	if (rc) {
		journal_line(TN_LOG_ERROR, "listen: %s: %s; another address, or off, can be given", c->listen, strerror(-rc));
		return (int)cli_exit_of(rc);
	}
	if (given.metrics >= 0)
		journal_line(TN_LOG_INFO, "metrics are at the socket that systemd gives");
	else if (http)
		journal_line(TN_LOG_INFO, "metrics are at http://%s/metrics", c->listen);
	rc = run_cache(c, a, &signals, http, given.attach);
	http_stop(http);
	return rc;
}

static int check_paths(const struct config *c, const char *file)
{
	const char *setting;
	char why[CONFIG_WHY];
	int rc = config_check_paths(c, &setting, why);

	if (rc == 0)
		return CLI_OK;
	if (file && config_line(c, setting))
		return cli_error(cli_exit_of(rc), "%s:%u: %s", file, config_line(c, setting), why);
	return cli_error(cli_exit_of(rc), "%s", why);
}

int main(int argc, char **argv)
{
	struct args a = {.host_bytes = NO_BYTES, .disk_bytes = NO_BYTES};
	char why[CONFIG_WHY];
	struct config c;
	int rc, n;

	cli_program = "tenutod";
	if (argc == 2 && strcmp(argv[1], "--version") == 0) {
		printf("tenutod %s\n", tn_version());
		return cli_finish(CLI_OK);
	}
	rc = cli_parse(&verb, argc, argv, &a, &n);
	if (rc != CLI_GO)
		return rc;
	rc = read_config(&c, &a, why);
	if (rc == 0 && !a.print_config)
		rc = config_check(&c, why);
	if (rc) {
		rc = cli_error(cli_exit_of(rc), "%s", why);
	} else if (a.print_config) {
		config_print(&c, stdout);
		rc = cli_finish(CLI_OK);
	} else {
		rc = a.check_config ? check_paths(&c, a.config) : run(&c, &a);
	}
	config_free(&c);
	return rc;
}
