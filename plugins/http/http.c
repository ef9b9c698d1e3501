/* SPDX-License-Identifier: Apache-2.0 */
#include "http.h"

#include <curl/curl.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "cursor.h"
#include "sockets.h"

#define FIELD_BYTES 4096u
#define BUFFER_BYTES 262144L
#define CONNECT_MS 5000L
#define FIRST_PAUSE_NS UINT64_C(50000000)
#define LONGEST_PAUSE_NS UINT64_C(2000000000)
#define EXIT_S 2
#define LONGEST_POLL_NS UINT64_C(60000000000)

/* One try at a time. A request that waits for its next try keeps its slot: a server that fails is not asked more often because of it. */
struct slot {
	CURL *easy;
	struct http *http;
	struct http_request *request; /* NULL: the slot is free */
	struct curl_slist *fields;
	uint64_t resume_ns; /* when the next try begins; 0: a try is under way */
	struct http_cursor out, in;
	char error[CURL_ERROR_SIZE]; /* what libcurl says of the try */
	char answer[HTTP_ANSWER_BYTES]; /* body of an answer to a request that has no place for it */
};

struct http {
	CURLM *multi;
	pthread_t thread;
	pthread_mutex_t lock; /* of posted, poked and stop */
	struct http_request *posted, **posted_last;
	bool poked, stop, exiting;
	struct http *next; /* of the process's loops */
	struct http_opts opts;
	char *ca_file;
	/* Of the loop's thread. */
	struct http_request *queue, **queue_last;
	uint64_t queue_deadline_ns; /* no request of the queue has an earlier one */
	uint64_t random;
	struct http_sockets sockets;
	struct http_line line;
	struct slot slot[];
};

uint64_t http_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int http_field(struct http_line *line, const char *format, ...)
{
	char text[FIELD_BYTES];
	struct curl_slist *longer;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (n < 0 || (size_t)n >= sizeof(text))
		return -E2BIG;
	longer = curl_slist_append(line->fields, text);
	if (!longer)
		return -ENOMEM;
	line->fields = longer;
	return 0;
}

int http_status_code(int status)
{
	static const struct {
		int status, code;
	} known[] = {{401, -EACCES}, {403, -EACCES}, {404, -ENOENT}, {412, -EEXIST}, {416, -ENODATA}, {429, -EIO}, {507, -ENOSPC}};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].status == status)
			return known[i].code;
	return status >= 200 && status < 300 ? 0 : status >= 300 && status < 500 ? -EINVAL : -EIO;
}

int http_check(struct http_request *r)
{
	r->again = r->status == 408 || r->status == 429 || (r->status >= 500 && r->status != 501 && r->status != 507);
	return http_status_code(r->status);
}

/* What libcurl's failure is for the caller; *again: it may pass. */
static int transport_code(CURLcode code, bool *again)
{
	*again = true;
	switch (code) {
	case CURLE_OK:
		return 0;
	case CURLE_COULDNT_CONNECT:
		return -ECONNREFUSED;
	case CURLE_COULDNT_RESOLVE_HOST:
	case CURLE_COULDNT_RESOLVE_PROXY:
		return -EHOSTUNREACH;
	case CURLE_OPERATION_TIMEDOUT: /* the connection was not made in time, or stalled */
	case CURLE_PARTIAL_FILE: /* the body ended early */
	case CURLE_GOT_NOTHING:
	case CURLE_SEND_ERROR:
	case CURLE_RECV_ERROR:
	case CURLE_SSL_CONNECT_ERROR:
		return -EIO;
	case CURLE_OUT_OF_MEMORY:
		return -ENOMEM;
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE:
		*again = false;
		return -EACCES;
	default:
		*again = false;
		return -EIO;
	}
}

/* ---- what libcurl calls ---------------------------------------------------------------------------------------------- */

static size_t send_body(char *buffer, size_t size, size_t count, void *arg)
{
	struct slot *s = arg;

	return http_cursor_take(&s->out, buffer, size * count);
}

/* libcurl sends a body again when a kept connection turns out to be dead. */
static int rewind_body(void *arg, curl_off_t offset, int origin)
{
	struct slot *s = arg;
	const struct http_request *r = s->request;

	if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > r->body_bytes)
		return CURL_SEEKFUNC_FAIL;
	http_cursor_set(&s->out, r->body, r->nbody, r->body_skip + (uint64_t)offset, r->body_bytes - (uint64_t)offset);
	return CURL_SEEKFUNC_OK;
}

static void keep_text(struct slot *s, const char *bytes, size_t n)
{
	struct http_request *r = s->request;
	char *text = r->text_bytes ? r->text : s->answer;
	size_t fits = (r->text_bytes ? r->text_bytes : sizeof(s->answer)) - 1 - r->text_used;

	fits = n < fits ? n : fits;
	memcpy(text + r->text_used, bytes, fits);
	r->text_used += (uint32_t)fits;
	text[r->text_used] = 0;
}

static size_t take_body(char *bytes, size_t size, size_t count, void *arg)
{
	struct slot *s = arg;
	struct http_request *r = s->request;
	size_t n = size * count;
	long status = 0;

	curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &status);
	if (r->into && status >= 200 && status < 300) {
		size_t fits = http_cursor_give(&s->in, bytes, n);

		r->moved += fits;
		r->too_long |= fits < n;
		return fits;
	}
	keep_text(s, bytes, n);
	return n;
}

static void copy_trimmed(char *out, size_t bytes, const char *from, const char *end)
{
	while (from < end && (*from == ' ' || *from == '\t'))
		from++;
	while (end > from && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' '))
		end--;
	if ((size_t)(end - from) < bytes) {
		memcpy(out, from, (size_t)(end - from));
		out[end - from] = 0;
	}
}

static void forget_fields(struct http_request *r)
{
	r->length = r->first = UINT64_MAX;
	if (r->etag)
		r->etag[0] = 0;
}

static size_t take_field(char *bytes, size_t size, size_t count, void *arg)
{
	struct slot *s = arg;
	struct http_request *r = s->request;
	size_t n = size * count;
	const char *colon = memchr(bytes, ':', n);
	char value[64] = "";

	if (n >= 5 && !memcmp(bytes, "HTTP/", 5)) { /* another answer: an interim one (100) came before */
		forget_fields(r);
		return n;
	}
	if (!colon)
		return n;
	if (r->etag && colon - bytes == 4 && !strncasecmp(bytes, "etag", 4))
		copy_trimmed(r->etag, HTTP_ETAG_BYTES, colon + 1, bytes + n);
	copy_trimmed(value, sizeof(value), colon + 1, bytes + n);
	if (colon - bytes == 14 && !strncasecmp(bytes, "content-length", 14) && *value)
		r->length = strtoull(value, NULL, 10);
	if (colon - bytes == 13 && !strncasecmp(bytes, "content-range", 13) && !strncasecmp(value, "bytes ", 6))
		r->first = strtoull(value + 6, NULL, 10);
	return n;
}

static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
	return http_sockets_open(arg, address->family, address->socktype, address->protocol);
}

static int close_socket(void *arg, curl_socket_t fd)
{
	http_sockets_close(arg, fd);
	return 0;
}

/* ---- tries ------------------------------------------------------------------------------------------------------------ */

static void set_transport(struct slot *s)
{
	struct http *h = s->http;
	CURL *e = s->easy;

	curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1); /* a connection per transfer: HTTP/2 would put all into one */
	curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(e, CURLOPT_ERRORBUFFER, s->error);
	curl_easy_setopt(e, CURLOPT_PATH_AS_IS, 1L);
	curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
	curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 1L);
	curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, (long)h->opts.stall_s);
	curl_easy_setopt(e, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
	curl_easy_setopt(e, CURLOPT_UPLOAD_BUFFERSIZE, BUFFER_BYTES);
	curl_easy_setopt(e, CURLOPT_OPENSOCKETFUNCTION, open_socket);
	curl_easy_setopt(e, CURLOPT_OPENSOCKETDATA, &h->sockets);
	curl_easy_setopt(e, CURLOPT_CLOSESOCKETFUNCTION, close_socket);
	curl_easy_setopt(e, CURLOPT_CLOSESOCKETDATA, &h->sockets);
	if (h->ca_file)
		curl_easy_setopt(e, CURLOPT_CAINFO, h->ca_file);
}

static void set_request(struct slot *s)
{
	const struct http_request *r = s->request;
	const struct http_line *line = &s->http->line;
	CURL *e = s->easy;

	curl_easy_setopt(e, CURLOPT_URL, line->url);
	curl_easy_setopt(e, CURLOPT_HTTPHEADER, s->fields);
	curl_easy_setopt(e, CURLOPT_PRIVATE, s);
	curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, take_body);
	curl_easy_setopt(e, CURLOPT_WRITEDATA, s);
	curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, take_field);
	curl_easy_setopt(e, CURLOPT_HEADERDATA, s);
	if (!strcmp(line->method, "HEAD")) {
		curl_easy_setopt(e, CURLOPT_NOBODY, 1L);
		return;
	}
	if (!strcmp(line->method, "PUT") || !strcmp(line->method, "POST")) {
		curl_easy_setopt(e, CURLOPT_UPLOAD, 1L);
		curl_easy_setopt(e, CURLOPT_READFUNCTION, send_body);
		curl_easy_setopt(e, CURLOPT_READDATA, s);
		curl_easy_setopt(e, CURLOPT_SEEKFUNCTION, rewind_body);
		curl_easy_setopt(e, CURLOPT_SEEKDATA, s);
		curl_easy_setopt(e, CURLOPT_INFILESIZE_LARGE, (curl_off_t)r->body_bytes);
	}
	if (strcmp(line->method, "GET") && strcmp(line->method, "PUT"))
		curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, line->method);
}

static void end(struct slot *s, int code)
{
	struct http_request *r = s->request;

	s->request = NULL;
	s->resume_ns = 0;
	r->code = code;
	r->done(r);
}

/* A number below @below; the quality does not matter, but processes must differ. */
static uint64_t draw(struct http *h, uint64_t below)
{
	h->random ^= h->random << 13;
	h->random ^= h->random >> 7;
	h->random ^= h->random << 17;
	return h->random % below;
}

/* A try has failed with @code, and another one may succeed. */
static void pause_or_end(struct slot *s, int code)
{
	struct http *h = s->http;
	const struct http_request *r = s->request;
	uint64_t pause = FIRST_PAUSE_NS << (r->tries < 8 ? r->tries : 8), now = http_now_ns();

	pause = pause < LONGEST_PAUSE_NS ? pause : LONGEST_PAUSE_NS;
	pause = pause / 4 + draw(h, pause * 3 / 4);
	if (r->tries >= h->opts.tries || (r->deadline_ns != HTTP_NO_DEADLINE && now + pause >= r->deadline_ns))
		end(s, code);
	else
		s->resume_ns = now + pause;
}

static void begin_try(struct slot *s)
{
	struct http *h = s->http;
	struct http_request *r = s->request;
	int rc;

	s->resume_ns = 0;
	r->code = r->status = 0;
	r->again = r->too_long = false;
	r->tries++;
	r->moved = 0;
	r->text_used = 0;
	keep_text(s, "", 0);
	s->error[0] = 0;
	forget_fields(r);
	http_cursor_set(&s->out, r->body, r->nbody, r->body_skip, r->body_bytes);
	http_cursor_set(&s->in, r->into, r->ninto, 0, r->into_bytes);
	h->line.fields = NULL;
	h->line.url[0] = 0;
	rc = r->describe(r, &h->line);
	if (rc == 0)
		rc = http_field(&h->line, "Expect:"); /* libcurl would wait for an interim answer before a large body */
	s->fields = h->line.fields;
	if (rc == 0) {
		curl_easy_reset(s->easy);
		set_transport(s);
		set_request(s);
		rc = curl_multi_add_handle(h->multi, s->easy) ? -ENOMEM : 0;
	}
	if (rc) {
		curl_slist_free_all(s->fields);
		s->fields = NULL;
		end(s, rc);
	}
}

/* libcurl has no hold on the request's buffers after this. */
static void leave_try(struct slot *s)
{
	curl_multi_remove_handle(s->http->multi, s->easy);
	curl_slist_free_all(s->fields);
	s->fields = NULL;
}

static void finish_try(struct slot *s, CURLcode result)
{
	struct http_request *r = s->request;
	bool again = false;
	long status = 0;
	int code;

	curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &status);
	leave_try(s);
	r->status = (int)status;
	r->answer = r->text_bytes ? r->text : s->answer;
	if (r->too_long) {
		code = -EIO;
	} else if (result == CURLE_OK) {
		code = r->check ? r->check(r) : http_check(r);
		again = r->again;
	} else {
		code = transport_code(result, &again);
	}
	r->failure = code ? code : r->failure;
	if (code && r->failed)
		r->failed(r, code, result == CURLE_OK || r->too_long ? NULL : s->error[0] ? s->error : curl_easy_strerror(result));
	r->answer = NULL;
	if (code && again)
		pause_or_end(s, code);
	else
		end(s, code);
}

/* ---- the loop --------------------------------------------------------------------------------------------------------- */

/* Whoever has a failure to tell tells it, and not that the time for another try is over. */
static int over(const struct http_request *r, uint64_t now)
{
	if (r->stop && __atomic_load_n(r->stop, __ATOMIC_ACQUIRE))
		return -ECANCELED;
	return r->deadline_ns > now ? 0 : r->failure ? r->failure : -ETIMEDOUT;
}

static void end_overdue(struct slot *s, uint64_t now)
{
	int code = over(s->request, now);

	if (!code)
		return;
	if (!s->resume_ns)
		leave_try(s);
	end(s, code);
}

static void cancel_chain(struct http_request *first)
{
	while (first) {
		struct http_request *r = first;

		first = r->next;
		r->code = -ECANCELED;
		r->done(r);
	}
}

/* Ends requests of the queue that are stopped or late. */
static void sweep_queue(struct http *h, uint64_t now)
{
	struct http_request **at = &h->queue, *r, *ended = NULL, **ended_last = &ended;

	h->queue_deadline_ns = HTTP_NO_DEADLINE;
	while ((r = *at) != NULL) {
		r->code = over(r, now);
		if (r->code) {
			*at = r->next;
			r->next = NULL;
			*ended_last = r;
			ended_last = &r->next;
			continue;
		}
		if (r->deadline_ns < h->queue_deadline_ns)
			h->queue_deadline_ns = r->deadline_ns;
		at = &r->next;
	}
	h->queue_last = at;
	while ((r = ended) != NULL) {
		ended = r->next;
		r->done(r);
	}
}

/* The process ends: whoever waits goes on, perhaps with a lock that another exit handler wants. */
static void end_all(struct http *h)
{
	for (uint32_t i = 0; i < h->opts.connections; i++) {
		struct slot *s = &h->slot[i];

		if (!s->request)
			continue;
		if (!s->resume_ns)
			leave_try(s);
		end(s, -ECANCELED);
	}
	cancel_chain(h->queue);
}

/* Takes what others have posted. False: nothing is left and nothing will come, or the process ends. */
static bool collect(struct http *h, bool *poked)
{
	struct http_request *first, **last;
	bool stop, exiting;

	pthread_mutex_lock(&h->lock);
	first = h->posted;
	last = h->posted_last;
	h->posted = NULL;
	h->posted_last = &h->posted;
	*poked = h->poked;
	h->poked = false;
	stop = h->stop;
	exiting = h->exiting;
	pthread_mutex_unlock(&h->lock);
	if (first) {
		*h->queue_last = first;
		h->queue_last = last;
		for (struct http_request *r = first; r; r = r->next) {
			*poked |= r->stop && __atomic_load_n(r->stop, __ATOMIC_ACQUIRE); /* its poke may have come before it */
			if (r->deadline_ns < h->queue_deadline_ns)
				h->queue_deadline_ns = r->deadline_ns;
		}
	}
	if (exiting)
		return false;
	if (!stop || h->queue)
		return true;
	for (uint32_t i = 0; i < h->opts.connections; i++)
		if (h->slot[i].request)
			return true;
	return false;
}

/* Begins what can begin now, and ends what is over. Return: when to look again at the latest. */
static uint64_t step_slots(struct http *h)
{
	uint64_t now = http_now_ns(), next = now + LONGEST_POLL_NS;

	for (uint32_t i = 0; i < h->opts.connections; i++) {
		struct slot *s = &h->slot[i];

		if (s->request)
			end_overdue(s, now);
		while (!s->request && h->queue) {
			struct http_request *r = h->queue;

			h->queue = r->next;
			if (!h->queue)
				h->queue_last = &h->queue;
			s->request = r;
			if (over(r, now))
				end(s, over(r, now));
			else
				begin_try(s);
		}
		if (s->request && s->resume_ns && s->resume_ns <= now)
			begin_try(s);
		if (!s->request)
			continue;
		next = s->resume_ns && s->resume_ns < next ? s->resume_ns : next;
		next = s->request->deadline_ns < next ? s->request->deadline_ns : next;
	}
	if (h->queue && h->queue_deadline_ns < next)
		next = h->queue_deadline_ns;
	return next;
}

static bool take_finished(struct http *h)
{
	const CURLMsg *message;
	bool any = false;
	int left;

	while ((message = curl_multi_info_read(h->multi, &left)) != NULL) {
		CURLcode result = message->data.result;
		char *slot = NULL;

		if (message->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &slot);
		finish_try((struct slot *)(void *)slot, result);
		any = true;
	}
	return any;
}

static void *run(void *arg)
{
	struct http *h = arg;
	bool poked;

	while (collect(h, &poked)) {
		uint64_t next, now = http_now_ns();
		int running;

		if (poked || h->queue_deadline_ns <= now)
			sweep_queue(h, now);
		next = step_slots(h);
		curl_multi_perform(h->multi, &running);
		if (take_finished(h))
			continue; /* slots are free */
		now = http_now_ns();
		curl_multi_poll(h->multi, NULL, 0, next > now ? (int)((next - now + 999999) / 1000000) : 0, NULL);
	}
	end_all(h);
	return NULL;
}

/* ---- for callers ------------------------------------------------------------------------------------------------------ */

void http_post(struct http *h, struct http_request *first, struct http_request *last)
{
	bool asleep, exiting;

	pthread_mutex_lock(&h->lock);
	exiting = h->exiting;
	asleep = !h->posted; /* else the thread that posted before wakes it */
	last->next = NULL;
	if (!exiting) {
		*h->posted_last = first;
		h->posted_last = &last->next;
	}
	pthread_mutex_unlock(&h->lock);
	if (exiting)
		cancel_chain(first); /* nobody takes them any more */
	else if (asleep)
		curl_multi_wakeup(h->multi);
}

void http_poke(struct http *h)
{
	pthread_mutex_lock(&h->lock);
	h->poked = true;
	pthread_mutex_unlock(&h->lock);
	curl_multi_wakeup(h->multi);
}

static void wake(struct http_request *r)
{
	sem_post(r->waiter);
}

int http_wait(struct http *h, struct http_request *r)
{
	sem_t done;

	sem_init(&done, 0, 0);
	r->waiter = &done;
	r->done = wake;
	http_post(h, r, r);
	while (sem_wait(&done))
		; /* a signal */
	sem_destroy(&done);
	return r->code;
}

static void free_all(struct http *h)
{
	for (uint32_t i = 0; i < h->opts.connections; i++)
		if (h->slot[i].easy)
			curl_easy_cleanup(h->slot[i].easy);
	if (h->multi)
		curl_multi_cleanup(h->multi);
	http_sockets_end(&h->sockets);
	pthread_mutex_destroy(&h->lock);
	free(h->ca_file);
	free(h);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode initialised;
static pthread_mutex_t loops_lock = PTHREAD_MUTEX_INITIALIZER;
static struct http *loops;
static pid_t process;

/*
 * OpenSSL gives its tables back when the process ends, and a thread that still moves bytes by TLS would crash then. So the loops end before. A child has no threads
 * of its parent.
 */
static void end_loops(void)
{
	struct timespec limit;

	if (getpid() != process)
		return;
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += EXIT_S;
	pthread_mutex_lock(&loops_lock);
	for (struct http *h = loops; h; h = h->next) {
		pthread_mutex_lock(&h->lock);
		h->exiting = true;
		pthread_mutex_unlock(&h->lock);
		curl_multi_wakeup(h->multi);
		if (!pthread_equal(h->thread, pthread_self()))
			pthread_timedjoin_np(h->thread, NULL, &limit);
	}
	pthread_mutex_unlock(&loops_lock);
}

/* Handlers run from the last to the first: that of OpenSSL, which libcurl begins, stands before ours. */
static void init_library(void)
{
	process = getpid();
	initialised = curl_global_init(CURL_GLOBAL_DEFAULT);
	if (!initialised && atexit(end_loops))
		initialised = CURLE_OUT_OF_MEMORY;
}

static void enlist(struct http *h)
{
	pthread_mutex_lock(&loops_lock);
	h->next = loops;
	loops = h;
	pthread_mutex_unlock(&loops_lock);
}

static void delist(struct http *h)
{
	pthread_mutex_lock(&loops_lock);
	for (struct http **at = &loops; *at; at = &(*at)->next)
		if (*at == h) {
			*at = h->next;
			break;
		}
	pthread_mutex_unlock(&loops_lock);
}

/* Signals are for the program's own threads. */
static int start_thread(struct http *h)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&h->thread, NULL, run, h);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -rc;
}

int http_create(const struct http_opts *opts, struct http **out)
{
	struct http *h;
	bool complete;
	int rc;

	pthread_once(&once, init_library);
	if (initialised)
		return -ENOMEM;
	h = calloc(1, sizeof(*h) + opts->connections * sizeof(h->slot[0]));
	if (!h)
		return -ENOMEM;
	h->opts = *opts;
	h->posted_last = &h->posted;
	h->queue_last = &h->queue;
	h->queue_deadline_ns = HTTP_NO_DEADLINE;
	if (getrandom(&h->random, sizeof(h->random), 0) != sizeof(h->random) || !h->random)
		h->random = http_now_ns();
	pthread_mutex_init(&h->lock, NULL);
	http_sockets_begin(&h->sockets);
	h->multi = curl_multi_init();
	h->ca_file = opts->ca_file ? strdup(opts->ca_file) : NULL;
	complete = h->multi && (h->ca_file || !opts->ca_file);
	for (uint32_t i = 0; i < opts->connections; i++) {
		h->slot[i].http = h;
		h->slot[i].easy = curl_easy_init();
		complete &= h->slot[i].easy != NULL;
	}
	if (complete)
		curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, (long)opts->connections);
	rc = complete ? start_thread(h) : -ENOMEM;
	if (rc) {
		free_all(h);
		return rc;
	}
	enlist(h);
	*out = h;
	return 0;
}

void http_destroy(struct http *h)
{
	bool exiting;

	if (!h)
		return;
	delist(h);
	pthread_mutex_lock(&h->lock);
	h->stop = true;
	exiting = h->exiting;
	pthread_mutex_unlock(&h->lock);
	if (exiting)
		return; /* its thread was joined, or hangs: the process frees all */
	curl_multi_wakeup(h->multi);
	pthread_join(h->thread, NULL);
	free_all(h);
}
