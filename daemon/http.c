/* SPDX-License-Identifier: Apache-2.0 */
#include "http.h"

#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "address.h"
#include "journal.h"
#include "../cli/metrics.h"

#define CONNECTIONS_MAX 32u
#define CONNECTIONS_PER_ADDRESS_MAX 8u /* nobody keeps all others out */
#define TIMEOUT_SECONDS 10u

struct http {
	struct MHD_Daemon *server;
	pthread_mutex_t lock; /* of the rest: held while the cache is asked */
	struct tn_cache *cache;
	bool closes;
};

/* ---- answers --------------------------------------------------------------------------------------- */

static enum MHD_Result answer(struct MHD_Connection *to, unsigned status, const char *type, struct MHD_Response *response)
{
	enum MHD_Result rc = MHD_NO;

	if (!response)
		return MHD_NO;
	if (MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type) == MHD_YES &&
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

static enum MHD_Result on_request(void *arg, struct MHD_Connection *to, const char *path, const char *method, const char *version,
				  const char *upload, size_t *upload_bytes, void **request)
{
	struct http *http = arg;
	enum MHD_Result rc;

	/* The first call is about the headers alone; an answer to what has a body would be too early. */
	if (!*request) {
		*request = http;
		return MHD_YES;
	}
	if (*upload_bytes) {
		*upload_bytes = 0;
		return MHD_YES;
	}
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

static void on_error(void *arg, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void on_error(void *arg, const char *fmt, va_list ap)
{
	char text[256];

	vsnprintf(text, sizeof(text), fmt, ap);
	text[strcspn(text, "\n")] = 0;
	journal_line(TN_LOG_DEBUG, "http: %s", text);
}

/* ---- start and stop -------------------------------------------------------------------------------- */

int http_start(const char *address, int fd, struct http **out)
{
	struct http *http;

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
	http->server = MHD_start_daemon(MHD_USE_AUTO_INTERNAL_THREAD | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, http,
					MHD_OPTION_EXTERNAL_LOGGER, on_error, NULL, MHD_OPTION_LISTEN_SOCKET, fd,
					MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
					CONNECTIONS_PER_ADDRESS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, TIMEOUT_SECONDS, MHD_OPTION_END);
	if (!http->server) {
		int rc = errno ? -errno : -EIO;

		close(fd);
		pthread_mutex_destroy(&http->lock);
		free(http);
		return rc;
	}
	*out = http;
	return 0;
}

void http_stop(struct http *http)
{
	if (!http)
		return;
	MHD_stop_daemon(http->server); /* closes the socket, too */
	pthread_mutex_destroy(&http->lock);
	free(http);
}

void http_cache_is_open(struct http *http, struct tn_cache *cache)
{
	if (!http)
		return;
	pthread_mutex_lock(&http->lock);
	http->cache = cache;
	pthread_mutex_unlock(&http->lock);
}

void http_cache_closes(struct http *http)
{
	if (!http)
		return;
	pthread_mutex_lock(&http->lock);
	http->cache = NULL;
	http->closes = true;
	pthread_mutex_unlock(&http->lock);
}
