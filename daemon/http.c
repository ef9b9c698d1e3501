/* SPDX-License-Identifier: Apache-2.0 */
#include "http.h"

#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "address.h"
#include "events.h"
#include "hints.h"
#include "journal.h"
#include "peers.h"
#include "../cli/cli.h"
#include "../cli/metrics.h"

#define LOOPBACK_MAX 16u    /* connections from this machine, so that no other one keeps its probes out */
#define OTHERS_MAX 32u	    /* and from others */
#define PER_ADDRESS_MAX 8u
#define PLACES (2 * (LOOPBACK_MAX + OTHERS_MAX)) /* those that were ended leave in the next turn only */
#define TIMEOUT_NS 10000000000u

/* A connection has one request. @until_ns: it ends then, whatever it sends or takes; 0: it has been ended, and is about to leave. */
struct connection {
	int fd; /* 0: the place is free */
	uint64_t until_ns;
	struct in6_addr from; /* of IPv4 as ::ffff:a.b.c.d; of a Unix socket :: */
};

struct http {
	struct MHD_Daemon *server;
	pthread_t thread;
	int stop; /* eventfd */
	struct connection connection[PLACES]; /* the thread's */
	pthread_mutex_t lock; /* of the rest: held while the cache is asked */
	struct tn_cache *cache;
	struct tn_publisher *publisher;
	struct tn_peer_server *peers;
	const char *token; /* of hints; "" or NULL: none are taken */
	bool closes;
};

/* ---- answers --------------------------------------------------------------------------------------- */

static enum MHD_Result answer(struct MHD_Connection *to, unsigned status, const char *type, struct MHD_Response *response)
{
	enum MHD_Result rc = MHD_NO;

	if (!response)
		return MHD_NO;
	if (MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type) == MHD_YES &&
	    MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close") == MHD_YES &&
	    (status != MHD_HTTP_METHOD_NOT_ALLOWED || MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD") == MHD_YES))
		rc = MHD_queue_response(to, status, response);
	MHD_destroy_response(response);
	return rc;
}

static enum MHD_Result answer_text(struct MHD_Connection *to, unsigned status, const char *text)
{
	/* The texts are constants. libmicrohttpd 0.9.75 takes them without const, and does not change them. */
	return answer(to, status, "text/plain; charset=utf-8",
		      MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT));
}

static enum MHD_Result no_cache(const struct http *http, struct MHD_Connection *to)
{
	return answer_text(to, MHD_HTTP_SERVICE_UNAVAILABLE, http->closes ? "the cache is closing\n" : "the cache is opening\n");
}

static enum MHD_Result answer_metrics(struct http *http, struct MHD_Connection *to)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *out;
	int rc;

	if (!http->cache)
		return no_cache(http, to);
	out = open_memstream(&text, &bytes);
	if (!out)
		return answer_text(to, MHD_HTTP_INTERNAL_SERVER_ERROR, "no memory\n");
	rc = metrics_print(http->cache, out);
	events_print(http->publisher, out);
	peers_print(http->peers, out);
	fprintf(out, "# HELP tenutod_log_lost_lines_total Log lines that nobody took.\n# TYPE tenutod_log_lost_lines_total counter\n"
		"tenutod_log_lost_lines_total %" PRIu64 "\n", journal_lost());
	if (fclose(out) || rc) {
		free(text);
		return answer_text(to, MHD_HTTP_INTERNAL_SERVER_ERROR, "the cache does not tell its statistics\n");
	}
	return answer(to, MHD_HTTP_OK, METRICS_CONTENT_TYPE, MHD_create_response_from_buffer(bytes, text, MHD_RESPMEM_MUST_FREE));
}

static enum MHD_Result answer_health(struct http *http, struct MHD_Connection *to)
{
	uint64_t blocks;

	if (http->cache && tn_cache_stat(http->cache, "blocks", &blocks))
		return answer_text(to, MHD_HTTP_INTERNAL_SERVER_ERROR, "the cache does not answer\n");
	return answer_text(to, MHD_HTTP_OK, "ok\n");
}

static enum MHD_Result answer_ready(struct http *http, struct MHD_Connection *to)
{
	return http->cache ? answer_text(to, MHD_HTTP_OK, "ready\n") : no_cache(http, to);
}

static const struct {
	const char *path;
	enum MHD_Result (*answer)(struct http *http, struct MHD_Connection *to);
} pages[] = {{"/metrics", answer_metrics}, {"/healthz", answer_health}, {"/readyz", answer_ready}};

/* ---- hints ----------------------------------------------------------------------------------------- */

#define HINTS_PATH "/v1/hints"

/* What a client sends. */
struct body {
	size_t bytes; /* above HINTS_BODY_MAX: too many, and not kept */
	char text[HINTS_BODY_MAX];
};

static void add_to_body(struct body *body, const char *upload, size_t bytes)
{
	if (body->bytes <= HINTS_BODY_MAX && bytes <= HINTS_BODY_MAX - body->bytes)
		memcpy(body->text + body->bytes, upload, bytes);
	body->bytes += bytes;
}

static enum MHD_Result answer_hints(struct http *http, struct MHD_Connection *to, const struct body *body)
{
	const char *given = MHD_lookup_connection_value(to, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION), *why;
	unsigned status;

	if (!http->cache)
		return no_cache(http, to);
	if (!http->token || !http->token[0])
		return answer_text(to, MHD_HTTP_NOT_FOUND, "no hints are taken: set hints_token_file\n");
	if (!hints_allowed(given, http->token))
		return answer_text(to, MHD_HTTP_UNAUTHORIZED, "send Authorization: Bearer and the token of hints_token_file\n");
	if (body->bytes > HINTS_BODY_MAX)
		return answer_text(to, MHD_HTTP_CONTENT_TOO_LARGE, "at most 256 KiB\n");
	status = hints_take(http->cache, body->text, body->bytes, &why);
	return answer_text(to, status, why);
}

static void on_completed(void *arg, struct MHD_Connection *of, void **request, enum MHD_RequestTerminationCode how)
{
	if (*request && *request != arg)
		free(*request);
	*request = NULL;
}

/* ---- requests -------------------------------------------------------------------------------------- */

static enum MHD_Result answer_page(struct http *http, struct MHD_Connection *to, const char *path, const char *method)
{
	enum MHD_Result rc;

	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return answer_text(to, MHD_HTTP_METHOD_NOT_ALLOWED, "GET and HEAD only\n");
	for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++)
		if (strcmp(path, pages[i].path) == 0) {
			pthread_mutex_lock(&http->lock);
			rc = pages[i].answer(http, to);
			pthread_mutex_unlock(&http->lock);
			return rc;
		}
	return answer_text(to, MHD_HTTP_NOT_FOUND, "/metrics, /healthz, /readyz\n");
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *to, const char *path, const char *method, const char *version,
				  const char *upload, size_t *upload_bytes, void **request)
{
	bool hints = strcmp(method, MHD_HTTP_METHOD_POST) == 0 && strcmp(path, HINTS_PATH) == 0;
	struct http *http = arg;
	enum MHD_Result rc;

	/* The first call is about the headers alone; an answer to what has a body would be too early. */
	if (!*request) {
		*request = hints ? calloc(1, sizeof(struct body)) : arg;
		return *request ? MHD_YES : MHD_NO;
	}
	if (*upload_bytes) {
		if (hints)
			add_to_body(*request, upload, *upload_bytes);
		*upload_bytes = 0;
		return MHD_YES;
	}
	if (!hints)
		return answer_page(http, to, path, method);
	pthread_mutex_lock(&http->lock);
	rc = answer_hints(http, to, *request);
	pthread_mutex_unlock(&http->lock);
	return rc;
}

static void on_error(void *arg, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void on_error(void *arg, const char *fmt, va_list ap)
{
	char text[256];

	vsnprintf(text, sizeof(text), fmt, ap);
	text[strcspn(text, "\n")] = 0;
	journal_line(TN_LOG_DEBUG, "http: %s", text);
}

/* ---- connections ----------------------------------------------------------------------------------- */

static bool is_loopback(const struct in6_addr *a)
{
	return IN6_IS_ADDR_LOOPBACK(a) || IN6_IS_ADDR_UNSPECIFIED(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
}

static struct in6_addr address_of(const struct sockaddr *a)
{
	struct in6_addr from = IN6ADDR_ANY_INIT;

	if (a && a->sa_family == AF_INET6) {
		memcpy(&from, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, sizeof(from));
	} else if (a && a->sa_family == AF_INET) {
		from.s6_addr[10] = from.s6_addr[11] = 0xff;
		memcpy(&from.s6_addr[12], &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4);
	}
	return from;
}

/* libmicrohttpd finds it closed in its next turn. */
static void end_connection(struct connection *c)
{
	shutdown(c->fd, SHUT_RDWR);
	c->until_ns = 0;
}

/*
 * Where there are as many as there may be, of the newcomer's address or from such machines as its own, the oldest of them ends: the others' requests
 * have had longer.
 */
static void make_way(struct http *http, const struct connection *newcomer)
{
	struct connection *oldest = NULL, *oldest_same = NULL;
	uint32_t n = 0, same = 0;

	for (struct connection *c = http->connection; c < http->connection + PLACES; c++) {
		if (!c->until_ns || is_loopback(&c->from) != is_loopback(&newcomer->from))
			continue;
		n++;
		if (!oldest || c->until_ns < oldest->until_ns)
			oldest = c;
		if (!IN6_ARE_ADDR_EQUAL(&c->from, &newcomer->from))
			continue;
		same++;
		if (!oldest_same || c->until_ns < oldest_same->until_ns)
			oldest_same = c;
	}
	if (same > PER_ADDRESS_MAX)
		end_connection(oldest_same);
	else if (n > (is_loopback(&newcomer->from) ? LOOPBACK_MAX : OTHERS_MAX))
		end_connection(oldest);
}

/* When it begins and when it has ended; *place is ours to set. In the thread. */
static void on_connection(void *arg, struct MHD_Connection *connection, void **place, enum MHD_ConnectionNotificationCode what)
{
	const union MHD_ConnectionInfo *fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	const union MHD_ConnectionInfo *from = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
	struct http *http = arg;
	struct connection *c = *place;

	if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
		if (c)
			*c = (struct connection){0};
		return;
	}
	for (c = http->connection; c < http->connection + PLACES && c->fd; c++)
		;
	if (c == http->connection + PLACES || !fd) /* libmicrohttpd takes no more than there are places */
		return;
	*c = (struct connection){fd->connect_fd, cli_now_ns() + TIMEOUT_NS, address_of(from ? from->client_addr : NULL)};
	*place = c;
	make_way(http, c);
}

/* Ends those whose time is over. ms until the next one's is, or 0: libmicrohttpd has more to do at once; -1: never. */
static int end_late(struct http *http)
{
	uint64_t now = cli_now_ns(), next = UINT64_MAX;
	MHD_UNSIGNED_LONG_LONG ms;

	for (struct connection *c = http->connection; c < http->connection + PLACES; c++) {
		if (c->until_ns && c->until_ns <= now)
			end_connection(c);
		if (c->until_ns && c->until_ns < next)
			next = c->until_ns;
	}
	if (MHD_get_timeout(http->server, &ms) == MHD_YES && ms == 0)
		return 0; /* it has no other: connections have no timeout of its own */
	return next == UINT64_MAX ? -1 : (int)((next - now) / 1000000u) + 1;
}

/* libmicrohttpd's own thread would know of inactivity only: who sends a byte per second would never end. */
static void *serve_requests(void *arg)
{
	struct http *http = arg;
	const union MHD_DaemonInfo *epoll = MHD_get_daemon_info(http->server, MHD_DAEMON_INFO_EPOLL_FD);
	struct pollfd p[2] = {{.fd = epoll->epoll_fd, .events = POLLIN}, {.fd = http->stop, .events = POLLIN}};

	while (!p[1].revents) {
		poll(p, 2, end_late(http));
		MHD_run(http->server);
	}
	return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------------- */

static int start(struct http *http, int fd)
{
	errno = 0;
	http->stop = eventfd(0, EFD_CLOEXEC);
	if (http->stop < 0)
		return -errno;
	http->server = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, http, MHD_OPTION_EXTERNAL_LOGGER, on_error,
					NULL, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, PLACES,
					MHD_OPTION_NOTIFY_CONNECTION, on_connection, http, MHD_OPTION_NOTIFY_COMPLETED, on_completed, http,
					MHD_OPTION_END);
	if (!http->server)
		return errno ? -errno : -EIO;
	return -pthread_create(&http->thread, NULL, serve_requests, http);
}

static void free_http(struct http *http)
{
	if (http->server)
		MHD_stop_daemon(http->server); /* closes the socket, too */
	if (http->stop >= 0)
		close(http->stop);
	pthread_mutex_destroy(&http->lock);
	free(http);
}

int http_start(const char *address, int fd, struct http **out)
{
	struct http *http;
	int rc;

	*out = NULL;
	if (fd < 0) {
		if (address_is_off(address))
			return 0;
		fd = address_listen(address);
		if (fd < 0)
			return fd;
	}
	http = calloc(1, sizeof(*http));
	if (!http) {
		close(fd);
		return -ENOMEM;
	}
	pthread_mutex_init(&http->lock, NULL);
	rc = start(http, fd);
	if (rc) {
		if (!http->server)
			close(fd);
		free_http(http);
		return rc;
	}
	*out = http;
	return 0;
}

void http_stop(struct http *http)
{
	uint64_t one = 1;

	if (!http)
		return;
	(void)!write(http->stop, &one, sizeof(one));
	pthread_join(http->thread, NULL);
	free_http(http);
}

void http_cache_is_open(struct http *http, struct tn_cache *cache, struct tn_publisher *publisher, struct tn_peer_server *peers, const char *token)
{
	if (!http)
		return;
	pthread_mutex_lock(&http->lock);
	http->cache = cache;
	http->publisher = publisher;
	http->peers = peers;
	http->token = token;
	pthread_mutex_unlock(&http->lock);
}

void http_cache_closes(struct http *http)
{
	if (!http)
		return;
	pthread_mutex_lock(&http->lock);
	http->cache = NULL;
	http->publisher = NULL;
	http->peers = NULL;
	http->closes = true;
	pthread_mutex_unlock(&http->lock);
}
