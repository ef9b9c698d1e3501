/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenutod`: owns a cache for the processes of a node. Opens the cache, tells its metrics, closes it in order.
 *
 * Stays in the foreground. SIGTERM and SIGINT end it, after everything is durable; SIGHUP has it read its configuration again. It uses the
 * library through its public headers only, as any other program would.
 *
 * The main thread takes the signals, and never waits for a file that a setting names, for stderr or for systemd. A second thread opens the cache,
 * serves it, and reads the configuration again: a FIFO or a file of a network that hangs stops that thread alone. What each waits for:
 *
 *   main thread    signals; at the end, the opening that is under way (lock_timeout_ms and the recovery), the closing (the disks), other threads (1 s)
 *   second thread  another owner's end (lock_timeout_ms), files of the configuration (nobody: SIGTERM ends the process without it)
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include <tenuto/plugin.h>
#include <tenuto/session.h>

#include "config.h"
#include "events.h"
#include "http.h"
#include "journal.h"
#include "peers.h"
#include "tables.h"

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

/* Before stores are opened, which may take long. An owner that is about to end is waited for as long as for its stores. 0 or -EADDRINUSE. */
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
		nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
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

static int fail(int rc, const char *what)
{
	const struct tn_error *e = tn_error_last();

	journal_line(TN_LOG_ERROR, "%s: %s", what, e->code == rc ? e->text : strerror(-rc));
	return (int)cli_exit_of(rc);
}

/* ---- the second thread ------------------------------------------------------------------------------- */

enum stage {
	STARTING, /* nothing is open */
	OPENING,  /* the cache is being opened, or is open and about to be served */
	OPEN,
	FAILED,
};

/* The settings are the second thread's; what is behind the lock is for both. */
struct service {
	const struct args *args;
	struct config *config;
	struct http *http;
	struct tables *tables; /* NULL: none are kept */
	int given; /* systemd's socket; -1: none */
	pthread_t main;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum stage stage;
	bool ends;
	bool reload; /* wanted */
	bool works;  /* the second thread may be waiting for a file of the configuration */
	bool syncs;  /* it is at the files of the tables, and has them to itself */
	struct tn_cache *cache; /* in OPEN, until the main thread takes it */
	char hints_token[TN_SERVE_TOKEN_BYTES]; /* "": no hints are taken */
	struct tn_publisher *publisher; /* of its events; NULL: none. The main thread's, once it has the cache */
	struct tn_peer_server *peers; /* likewise; NULL: no other node is served */
	int code; /* of the exit, in FAILED */
};

/* False: the process ends, and the thread has to. */
static bool enter(struct service *s, enum stage stage, struct tn_cache *cache)
{
	bool goes_on;

	pthread_mutex_lock(&s->lock);
	goes_on = !s->ends;
	if (goes_on || stage != OPENING) {
		s->stage = stage;
		s->cache = cache;
	}
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	return goes_on;
}

/* CLI_OK, or the exit code. */
static int open_and_serve(struct service *s, const struct tn_serve_opts *rules)
{
	struct tn_cache_opts opts;
	struct tn_cache *cache;
	uint64_t blocks = 0;
	int rc;

	config_cache_opts(s->config, &opts);
	opts.log = journal_of_library;
	opts.log_level = TN_LOG_DEBUG; /* journal_set_level chooses, and may choose anew */
	sd_notify(0, "STATUS=opening the cache");
	if (!enter(s, OPENING, NULL))
		return CLI_OK;
	rc = tn_cache_open(&opts, &cache);
	if (rc)
		return fail(rc, "cannot open the cache");
	tn_cache_stat(cache, "blocks", &blocks);

	/* Whatever reaches the cache from outside begins here, before systemd is told; the sessions end when the cache closes. */
	s->publisher = events_start(cache, s->config->events);
	rc = serve_by(cache, s->config, s->given, rules);
	rc = rc ? rc : peers_start(cache, s->config, &s->peers);
	if (rc) {
		rc = fail(rc, "cannot serve the cache");
		tn_publish_stop(s->publisher);
		tn_cache_close(cache);
		return rc;
	}
	http_cache_is_open(s->http, cache, s->publisher, s->peers, s->hints_token);
	journal_line(TN_LOG_INFO, "ready: %" PRIu64 " blocks are there", blocks);
	if (enter(s, OPEN, cache))
		sd_notify(0, "READY=1\nSTATUS=ready");
	return CLI_OK;
}

/* With all that the settings name outside of the stores: when a file hangs, nothing is open yet. */
static int start_service(struct service *s)
{
	char path[CONFIG_SOCKET_BYTES + 1], why[CONFIG_WHY];
	const struct config *c = s->config;
	const struct tn_serve_opts *opts;
	struct client_rules *rules;
	int rc;

	if (s->given < 0 && (rc = config_check_socket(c->socket, why))) {
		journal_line(TN_LOG_ERROR, "%s", why);
		return (int)cli_exit_of(rc);
	}
	rc = clients_rules(&c->clients, &rules, &opts, why, sizeof(why));
	if (rc) {
		journal_line(TN_LOG_ERROR, "clients: %s", why);
		return (int)cli_exit_of(rc);
	}
	if (strcmp(c->hints_token_file, "off") != 0 && client_read_token(c->hints_token_file, s->hints_token, why, sizeof(why)))
		journal_line(TN_LOG_ERROR, "hints_token_file: %s; no hints are taken", why);
	if (s->given < 0 && socket_path(c, path) && (rc = await_socket(path, c->dirs.n > 0 ? c->lock_timeout_ms : 0)))
		rc = (int)cli_exit_of(rc);
	else
		rc = open_and_serve(s, opts);
	clients_rules_free(rules);
	return rc;
}

/* The file's rules count from here on, whatever it says of the socket, which stays as it is. With the lock. False: they do not. */
static bool apply_rules(struct tn_cache *cache, const struct config *c, const struct tn_serve_opts *opts)
{
	int rc = tn_cache_serve_anew(cache, opts);

	if (rc && (rc != -EINVAL || c->clients.n > 0)) /* a cache that is not served has no rules */
		journal_line(TN_LOG_WARN, "clients: %s; the rules stay as they were", tn_error_last()->text);
	return rc == 0;
}

/* What was read counts, unless the process ends. */
static void apply(struct service *s, const struct config *c, const struct tn_serve_opts *opts)
{
	struct config *running = s->config;
	char rules[48] = "";

	pthread_mutex_lock(&s->lock);
	if (s->cache) {
		if (opts && apply_rules(s->cache, c, opts))
			snprintf(rules, sizeof(rules), ", %u rules for clients", c->clients.n);
		running->log_level = c->log_level; /* one of the table's texts */
		journal_set_level(config_log_level(running));
		journal_line(TN_LOG_INFO, "the configuration was read again; log_level is %s%s", running->log_level, rules);
	}
	pthread_mutex_unlock(&s->lock);
}

static void reload(struct service *s)
{
	const struct tn_serve_opts *opts = NULL;
	struct client_rules *rules = NULL;
	char why[CONFIG_WHY];
	struct config c;
	int rc = read_config(&c, s->args, why);

	if (rc == 0)
		rc = config_check(&c, why);
	if (rc) {
		journal_line(TN_LOG_ERROR, "%s; the settings stay as they were", why);
		config_free(&c);
		return;
	}
	for (const struct config_setting *set = config_settings; set->name; set++)
		if (!set->live && !config_same(set, s->config, &c))
			warn_changed(s->args->config, c.line[set - config_settings], set->name);
	if (clients_rules(&c.clients, &rules, &opts, why, sizeof(why)))
		journal_line(TN_LOG_ERROR, "clients: %s; the rules stay as they were", why);
	apply(s, &c, opts);
	clients_rules_free(rules);
	config_free(&c);
}

/* Waits with the lock until something changes; with tables a second at most. */
static void await_change(struct service *s)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += 1;
	if (s->tables)
		pthread_cond_clockwait(&s->changed, &s->lock, CLOCK_MONOTONIC, &until);
	else
		pthread_cond_wait(&s->changed, &s->lock);
}

/* With the lock, which is free while files are read and written. */
static void sync_tables(struct service *s, bool all)
{
	if (!s->tables)
		return;
	if (s->cache)
		tables_exchange(s->tables, s->cache);
	s->syncs = true;
	pthread_mutex_unlock(&s->lock);
	tables_sync(s->tables, all);
	pthread_mutex_lock(&s->lock);
	s->syncs = false;
	pthread_cond_broadcast(&s->changed);
}

/* False: the process ends, and what the main thread has taken of the tables is written. */
static bool await_reload(struct service *s)
{
	bool goes_on;

	pthread_mutex_lock(&s->lock);
	s->works = false;
	while (!s->reload && !s->ends) {
		await_change(s);
		if (!s->reload && !s->ends)
			sync_tables(s, false);
	}
	goes_on = !s->ends;
	while (!goes_on && s->cache)
		pthread_cond_wait(&s->changed, &s->lock);
	if (!goes_on)
		sync_tables(s, true);
	s->reload = false;
	s->works = goes_on;
	pthread_mutex_unlock(&s->lock);
	return goes_on;
}

static void *work(void *arg)
{
	struct service *s = arg;
	int code = start_service(s);

	if (code != CLI_OK) {
		s->code = code;
		enter(s, FAILED, NULL);
		pthread_kill(s->main, SIGUSR1);
	}
	while (await_reload(s)) {
		if (code != CLI_OK)
			continue;
		notify_reloading();
		reload(s);
		sd_notify(0, "READY=1");
	}
	return NULL;
}

/* ---- the main thread --------------------------------------------------------------------------------- */

static void ask_for_reload(struct service *s)
{
	pthread_mutex_lock(&s->lock);
	if (s->stage == OPEN && s->works)
		journal_line(TN_LOG_WARN, "SIGHUP: the configuration is still being read; it is read once more after that");
	s->reload = true;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

/* SIGTERM or SIGINT; 0: the second thread has failed. */
static int wait_for_end(struct service *s, const sigset_t *signals)
{
	bool failed = false;
	int sig = 0;

	while (!failed) {
		sigwait(signals, &sig);
		if (sig == SIGTERM || sig == SIGINT)
			return sig;
		if (sig == SIGHUP)
			ask_for_reload(s);
		pthread_mutex_lock(&s->lock);
		failed = s->stage == FAILED;
		pthread_mutex_unlock(&s->lock);
	}
	return 0;
}

/* False: it waits for something outside, and is left to the end of the process. */
static bool join_in_a_second(pthread_t thread)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until); /* the time of day may be set meanwhile */
	until.tv_sec += 1;
	return pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &until) == 0;
}

static void *notify_stopping(void *arg)
{
	sd_notify(0, "STOPPING=1\nSTATUS=closing the cache");
	return NULL;
}

/* With the lock. Tables whose files hang for a second keep what was written of them last. */
static void take_tables(struct service *s, struct tn_cache *cache)
{
	struct timespec until;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += 1;
	while (s->syncs && rc == 0)
		rc = pthread_cond_clockwait(&s->changed, &s->lock, CLOCK_MONOTONIC, &until);
	if (!s->syncs)
		tables_exchange(s->tables, cache);
}

/* The cache to close; NULL: there is none, and *code is of the exit. Nothing touches it any more but this thread. */
static struct tn_cache *take_cache(struct service *s, int sig, int *code)
{
	struct tn_cache *cache;

	pthread_mutex_lock(&s->lock);
	s->ends = true;
	pthread_cond_broadcast(&s->changed);
	if (s->stage == OPENING)
		journal_line(TN_LOG_INFO, "SIG%s: ends once the cache has opened", sigabbrev_np(sig));
	while (s->stage == OPENING)
		pthread_cond_wait(&s->changed, &s->lock);
	cache = s->cache;
	if (cache && s->tables)
		take_tables(s, cache);
	s->cache = NULL;
	pthread_cond_broadcast(&s->changed);
	*code = s->stage == FAILED ? s->code : CLI_OK;
	pthread_mutex_unlock(&s->lock);
	return cache;
}

static int close_cache(struct service *s, struct tn_cache *cache)
{
	int rc;

	http_cache_closes(s->http);
	tn_publish_stop(s->publisher);
	tn_peer_server_end(s->peers);
	rc = tn_cache_close(cache);
	if (rc)
		return fail(rc, "the cache is closed, and not all of it is durable");
	journal_line(TN_LOG_INFO, "the cache is closed");
	return CLI_OK;
}

static int end(struct service *s, int sig)
{
	pthread_t notifier;
	int rc;
	struct tn_cache *cache = take_cache(s, sig, &rc);
	bool notifies = pthread_create(&notifier, NULL, notify_stopping, NULL) == 0; /* systemd may be slow to listen */

	journal_line(TN_LOG_INFO, cache ? "SIG%s: makes everything durable and ends" : "SIG%s: ends; the cache was not opened", sigabbrev_np(sig));
	if (cache)
		rc = close_cache(s, cache);
	if (notifies)
		join_in_a_second(notifier);
	return rc;
}

/* With the server of the metrics. *done: the settings are nobody's any more. */
static int run_service(struct service *s, const sigset_t *signals, bool *done)
{
	pthread_t second;
	int sig, rc;

	s->main = pthread_self();
	s->works = true;
	rc = pthread_create(&second, NULL, work, s);
	if (rc) {
		journal_line(TN_LOG_ERROR, "cannot start a thread: %s", strerror(rc));
		return (int)cli_exit_of(-rc);
	}
	sig = wait_for_end(s, signals);
	rc = sig ? end(s, sig) : s->code;
	pthread_mutex_lock(&s->lock);
	s->ends = true;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	*done = join_in_a_second(second);
	if (*done)
		tables_free(s->tables);
	return rc;
}

/* A directory that others may write costs its plugins, not the cache. The environment does not count in any case. */
static void use_plugins(const char *path)
{
	char why[CONFIG_WHY];

	if (config_use_plugins(path, why) == 0)
		return;
	journal_line(TN_LOG_WARN, "%s; only plugins that were installed with Tenuto are used", why);
	tn_plugin_path("");
}

static int run(struct config *c, const struct args *a, const sigset_t *signals, bool *done)
{
	/* Not on the stack: where the second thread waits for a file, it has this until the process is gone. */
	static struct service s = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
	struct given given;
	int rc = journal_open();

	if (rc)
		return cli_error(cli_exit_of(rc), "cannot start a thread: %s", strerror(-rc));
	journal_set_level(config_log_level(c));
	given = take_sockets();
	s.args = a;
	s.config = c;
	s.given = given.attach;
	if (strcmp(c->slack, "off") != 0 && tables_create(c->slack, &s.tables))
		journal_line(TN_LOG_WARN, "slack: no memory for tables: none are kept");
	use_plugins(c->plugins);
	rc = http_start(c->listen, given.metrics, &s.http);
	if (rc) {
		journal_line(TN_LOG_ERROR, "listen: %s: %s; another address, or off, can be given", c->listen, strerror(-rc));
		rc = (int)cli_exit_of(rc);
	} else {
		if (given.metrics >= 0)
			journal_line(TN_LOG_INFO, "metrics are at the socket that systemd gives");
		else if (s.http)
			journal_line(TN_LOG_INFO, "metrics are at http://%s/metrics", c->listen);
		rc = run_service(&s, signals, done);
		http_stop(s.http);
	}
	journal_close();
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
	static struct args a = {.host_bytes = NO_BYTES, .disk_bytes = NO_BYTES};
	static struct config c;
	char why[CONFIG_WHY];
	bool done = true;
	sigset_t signals;
	int rc, n;

	cli_hold_streams();
	cli_program = "tenutod";
	/* Before it is ready, SIGHUP waits; SIGTERM and SIGINT end it at once while nothing is open yet. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
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
	} else if (a.check_config) {
		rc = check_paths(&c, a.config);
	} else {
		/* Before any thread begins, so that all of them leave the signals to sigwait. SIGUSR1 comes from the second thread. */
		sigaddset(&signals, SIGTERM);
		sigaddset(&signals, SIGINT);
		sigaddset(&signals, SIGUSR1);
		pthread_sigmask(SIG_BLOCK, &signals, NULL);
		signal(SIGPIPE, SIG_IGN);
		rc = run(&c, &a, &signals, &done);
	}
	if (!done) { /* what exit() would take apart is in use: the second thread waits for something outside */
		fflush(NULL);
		_exit(rc);
	}
	config_free(&c);
	return rc;
}
