/* SPDX-License-Identifier: Apache-2.0 */
/* The client of plugins/s3 with a small server in this process: connections that are rare, stops and deadlines in every state, many threads. */
#include "s3/client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tn_test.h"

#define REQUEST_BYTES 4096u
#define OBJECT "0123456789abcdefghijklmnopqrstuvwxyz"
#define DENIED "<Error><Code>SignatureDoesNotMatch</Code><Message>The signature\tdoes not match</Message></Error>"
#define MS UINT64_C(1000000)

/* ---- the server: a thread per connection, one request each ------------------------------------------------------------- */

static int listener, port;
static uint32_t answered_503, hanging, aborts, parts, lost, wanes;

static void raise_count(uint32_t *count)
{
	__atomic_fetch_add(count, 1, __ATOMIC_SEQ_CST);
}

static uint32_t count_of(const uint32_t *count)
{
	return __atomic_load_n(count, __ATOMIC_SEQ_CST);
}

static void answer(int fd, const char *head, const char *body, size_t n)
{
	char text[512];
	int bytes = snprintf(text, sizeof(text), "HTTP/1.1 %s\r\nConnection: close\r\nETag: \"an-etag\"\r\nContent-Length: %zu\r\n\r\n", head, n);

	if (send(fd, text, (size_t)bytes, MSG_NOSIGNAL) < 0 || (n && send(fd, body, n, MSG_NOSIGNAL) < 0))
		return; /* a client that is gone */
}

static void answer_range(int fd, const char *request)
{
	const char *range = strcasestr(request, "\r\nRange: bytes=");
	unsigned first = 0, last = 0;
	char head[128];

	assert_non_null(range);
	assert_int_equal(sscanf(range + 15, "%u-%u", &first, &last), 2);
	snprintf(head, sizeof(head), "206 Partial\r\nContent-Range: bytes %u-%u/%zu", first, last, strlen(OBJECT));
	answer(fd, head, &OBJECT[first], last - first + 1);
}

/* Reads what comes until the client closes. */
static void hang(int fd)
{
	char bytes[65536];

	raise_count(&hanging);
	while (recv(fd, bytes, sizeof(bytes), 0) > 0)
		;
}

static void *serve(void *arg)
{
	char request[REQUEST_BYTES] = "";
	int fd = (int)(intptr_t)arg;
	size_t n = 0;
	ssize_t got;

	while (!strstr(request, "\r\n\r\n") && n < sizeof(request) - 1 && (got = recv(fd, request + n, 1, 0)) > 0)
		n += (size_t)got;
	if (strstr(request, "partNumber="))
		raise_count(&parts);
	if (!strncmp(request, "DELETE", 6)) {
		raise_count(&aborts);
		answer(fd, "204 Gone", "", 0);
	} else if (!strncmp(request, "POST", 4)) {
		answer(fd, "200 OK", "<UploadId>an-id</UploadId>", 26);
	} else if (strstr(request, "hang")) {
		hang(fd);
	} else if (strstr(request, "wanes")) {
		raise_count(&wanes);
		if (count_of(&wanes) > 1)
			hang(fd);
		else
			answer(fd, "503 Busy", "", 0);
	} else if (strstr(request, "denied")) {
		answer(fd, "403 Forbidden", DENIED, strlen(DENIED));
	} else if (strstr(request, "busy")) {
		raise_count(&answered_503);
		answer(fd, "503 Busy", "", 0);
	} else if (strstr(request, "taken")) {
		answer(fd, "412 Precondition Failed", "", 0);
	} else if (strstr(request, "lost")) {
		raise_count(&lost);
		if (count_of(&lost) > 1)
			answer(fd, "412 Precondition Failed", "", 0);
	} else if (n) {
		answer_range(fd, request);
	}
	close(fd);
	return NULL;
}

static void *accept_all(void *arg)
{
	pthread_t thread;
	int fd;

	while ((fd = accept(listener, NULL, NULL)) >= 0) {
		if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd))
			abort();
		pthread_detach(thread);
	}
	return NULL;
}

static pthread_t acceptor;

static int start_server(void **state)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t n = sizeof(address);

	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || bind(listener, (void *)&address, n) || listen(listener, 64) || getsockname(listener, (void *)&address, &n))
		return -1;
	port = ntohs(address.sin_port);
	return pthread_create(&acceptor, NULL, accept_all, NULL);
}

static int stop_server(void **state)
{
	shutdown(listener, SHUT_RDWR);
	pthread_join(acceptor, NULL);
	return close(listener);
}

/* ---- the client -------------------------------------------------------------------------------------------------------- */

static struct s3_client *client_of(uint32_t connections, uint32_t tries)
{
	char endpoint[64], detail[256];
	struct s3_client *client;
	struct s3_opts opts;

	snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%d", port);
	s3_opts_init(&opts);
	opts.endpoint = endpoint;
	opts.bucket = "bucket";
	opts.access_key = opts.secret_key = "key";
	opts.session_token = opts.ca_file = NULL;
	opts.connections = connections;
	opts.tries = tries;
	opts.multipart_bytes = S3_PART_MIN;
	assert_int_equal(s3_client_create(&opts, &client, detail, sizeof(detail)), 0);
	return client;
}

/* A read of four bytes; ended counts. */
struct one {
	struct object_transfer t; /* first */
	struct iovec iov[2];
	char bytes[8];
	char why[OBJECT_WHY_BYTES]; /* of the last try that failed */
	sem_t done;
};

static void done(struct object_transfer *t)
{
	sem_post(&((struct one *)(void *)t)->done);
}

static void failed(struct object_transfer *t, const char *why)
{
	struct one *o = (struct one *)(void *)t;

	snprintf(o->why, sizeof(o->why), "%s", why);
}

static void begin(struct s3_client *client, struct one *o, const char *key, const uint32_t *stop, uint64_t deadline_ns)
{
	*o = (struct one){.t = {.op = OBJECT_GET, .key = key, .offset = 10, .bytes = 4, .iov = o->iov, .niov = 2, .stop = stop, .deadline_ns = deadline_ns,
			       .done = done, .failed = failed}};
	o->iov[0] = (struct iovec){o->bytes, 1};
	o->iov[1] = (struct iovec){o->bytes + 4, 3};
	sem_init(&o->done, 0, 0);
	assert_int_equal(s3_prepare(client, &o->t), 0);
	s3_post(&o->t);
}

static void end(struct one *o, int code)
{
	struct timespec limit;

	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += 10;
	if (sem_timedwait(&o->done, &limit))
		fail_msg("%s has not ended", o->t.key);
	sem_destroy(&o->done);
	s3_forget(&o->t);
	assert_int_equal(o->t.code, code);
}

static void until(const uint32_t *count, uint32_t least)
{
	for (int i = 0; count_of(count) < least; i++) {
		if (i == 10000)
			fail_msg("the server does not come so far");
		poll(NULL, 0, 1);
	}
}

static void a_range_goes_into_several_buffers(void **state)
{
	struct s3_client *client = client_of(2, 2);
	struct one o;

	begin(client, &o, "plain", NULL, HTTP_NO_DEADLINE);
	end(&o, 0);
	assert_memory_equal(o.bytes, "a\0\0\0bcd\0", 8);
	assert_int_equal(o.t.moved, 4);
	s3_client_destroy(client);
}

static void what_waits_for_a_connection_ends_by_its_deadline(void **state)
{
	struct s3_client *client = client_of(1, 2);
	uint32_t stop = 0, before = count_of(&hanging);
	uint64_t now = http_now_ns();
	struct one runs, waits, late;

	begin(client, &runs, "hang", &stop, HTTP_NO_DEADLINE);
	until(&hanging, before + 1);
	begin(client, &late, "late", NULL, now);
	begin(client, &waits, "waits", NULL, http_now_ns() + 50 * MS);
	end(&late, -ETIMEDOUT);
	end(&waits, -ETIMEDOUT);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	s3_poke(client);
	end(&runs, -ECANCELED);
	s3_client_destroy(client);
}

static void no_pause_reaches_beyond_the_deadline(void **state)
{
	struct s3_client *client = client_of(1, 100);
	uint64_t deadline_ns = http_now_ns() + 600 * MS;
	struct one o;

	begin(client, &o, "busy", NULL, deadline_ns);
	end(&o, -EIO); /* why the last try has failed, also if another one was under way when time was over */
	assert_true(http_now_ns() < deadline_ns + 1000 * MS);
	assert_in_range(o.t.tries, 1, 8);
	s3_client_destroy(client);
}

static void a_deadline_in_a_later_try_tells_why_the_one_before_has_failed(void **state)
{
	struct s3_client *client = client_of(1, 100);
	uint64_t deadline_ns = http_now_ns() + 1000 * MS;
	struct one o;

	begin(client, &o, "wanes", NULL, deadline_ns);
	end(&o, -EIO);
	assert_int_equal(o.t.tries, 2);
	assert_true(http_now_ns() >= deadline_ns);
	assert_non_null(strstr(o.why, "HTTP 503"));
	/* Nothing has failed before this one. */
	begin(client, &o, "hang", NULL, http_now_ns() + 100 * MS);
	end(&o, -ETIMEDOUT);
	assert_string_equal(o.why, "");
	s3_client_destroy(client);
}

static void a_failure_is_told_with_the_object_the_store_and_what_to_do(void **state)
{
	static const struct {
		const char *key;
		int code;
		const char *words[4];
	} failures[] = {
		{"denied", -EACCES, {"HTTP 403 SignatureDoesNotMatch", "(The signature?does not match)", "check secret_key"}},
		{"taken", -EEXIST, {"HTTP 412", "if_absent"}},
		{"busy", -EIO, {"HTTP 503", "fewer connections"}},
		{"", -ECONNREFUSED, {"onnect", "check endpoint"}}, /* nobody listens */
	};
	char store[64];
	int here = port;

	for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++) {
		struct s3_client *client;
		struct one o;

		port = *failures[i].key ? here : 1;
		client = client_of(1, 1);
		begin(client, &o, *failures[i].key ? failures[i].key : "nobody", NULL, http_now_ns() + 20000 * MS);
		end(&o, failures[i].code);
		snprintf(store, sizeof(store), "object %s of http://127.0.0.1:%d/bucket: ", o.t.key, port);
		assert_memory_equal(o.why, store, strlen(store));
		for (size_t k = 0; failures[i].words[k]; k++)
			if (!strstr(o.why, failures[i].words[k]))
				fail_msg("%s lacks %s", o.why, failures[i].words[k]);
		s3_client_destroy(client);
	}
	port = here;
}

static void a_stop_ends_what_runs_what_waits_and_what_pauses(void **state)
{
	struct s3_client *client = client_of(2, 100);
	uint32_t stop = 0, hung = count_of(&hanging), busy = count_of(&answered_503);
	struct one runs, pauses, waits, other;

	begin(client, &runs, "hang", &stop, HTTP_NO_DEADLINE);
	begin(client, &pauses, "busy", &stop, HTTP_NO_DEADLINE);
	until(&hanging, hung + 1);
	until(&answered_503, busy + 1);
	begin(client, &waits, "waits", &stop, HTTP_NO_DEADLINE);
	begin(client, &other, "other", NULL, HTTP_NO_DEADLINE);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	s3_poke(client);
	end(&runs, -ECANCELED);
	end(&pauses, -ECANCELED);
	end(&waits, -ECANCELED);
	end(&other, 0);
	s3_client_destroy(client);
}

static void a_stop_that_comes_before_its_post_is_seen(void **state)
{
	struct s3_client *client = client_of(1, 2);
	uint32_t stop = 0, stopped = 1, before = count_of(&hanging);
	struct one runs, waits;

	begin(client, &runs, "hang", &stop, HTTP_NO_DEADLINE);
	until(&hanging, before + 1);
	s3_poke(client); /* that of `stopped` */
	poll(NULL, 0, 50); /* the client has looked */
	begin(client, &waits, "waits", &stopped, HTTP_NO_DEADLINE);
	end(&waits, -ECANCELED);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	s3_poke(client);
	end(&runs, -ECANCELED);
	s3_client_destroy(client);
}

static void an_object_that_may_be_the_writes_own_is_no_other(void **state)
{
	static const struct {
		const char *key;
		int code;
	} writes[] = {{"taken", -EEXIST}, {"lost", -EIO}};
	struct s3_client *client = client_of(1, 3);

	for (size_t i = 0; i < sizeof(writes) / sizeof(writes[0]); i++) {
		struct object_transfer t = {.op = OBJECT_PUT, .key = writes[i].key, .if_absent = true, .deadline_ns = http_now_ns() + 20000 * MS};

		assert_int_equal(object_wait(client, &t), writes[i].code);
	}
	assert_int_equal(count_of(&lost), 2);
	s3_client_destroy(client);
}

static void a_write_in_parts_that_is_stopped_is_aborted_before_the_client_is_gone(void **state)
{
	struct s3_client *client = client_of(4, 2);
	uint32_t stop = 0, sent = count_of(&parts), aborted = count_of(&aborts);
	size_t bytes = 3 * S3_PART_MIN;
	char *data = calloc(1, bytes);
	struct iovec iov = {data, bytes};
	struct one o = {.t = {.op = OBJECT_PUT, .key = "hang-parts", .bytes = bytes, .iov = &iov, .niov = 1, .stop = &stop, .deadline_ns = HTTP_NO_DEADLINE, .done = done}};

	assert_non_null(data);
	sem_init(&o.done, 0, 0);
	assert_int_equal(s3_prepare(client, &o.t), 0);
	s3_post(&o.t);
	until(&parts, sent + 3);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	s3_poke(client);
	end(&o, -ECANCELED);
	free(data);
	s3_client_destroy(client);
	assert_int_equal(count_of(&aborts), aborted + 1);
}

/* ---- the end of a process ---------------------------------------------------------------------------------------------- */

static struct s3_client *of_child;
static pthread_t child_thread;
static int child_code;

static int read_that_hangs(void)
{
	char bytes[4];
	struct iovec iov = {bytes, sizeof(bytes)};
	struct object_transfer t = {.op = OBJECT_GET, .key = "hang", .bytes = sizeof(bytes), .iov = &iov, .niov = 1, .deadline_ns = HTTP_NO_DEADLINE};

	return object_wait(of_child, &t);
}

static void *hang_in_child(void *arg)
{
	child_code = read_that_hangs();
	return NULL;
}

/* Runs after the loops have ended, as the destructor of a static agent does. */
static void check_child(void)
{
	pthread_join(child_thread, NULL);
	_exit(child_code == -ECANCELED && read_that_hangs() == -ECANCELED ? 0 : 1);
}

/* The first test: the child is the one that begins libcurl. */
static void what_waits_when_the_process_ends_is_cancelled(void **state)
{
	uint32_t before = count_of(&hanging);
	int status;
	pid_t pid;

	if (TN_TEST_THREAD_SANITIZER)
		tn_test_skip("a child of several threads starts no thread there");
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		alarm(20);
		if (atexit(check_child))
			_exit(2);
		of_child = client_of(1, 2);
		if (pthread_create(&child_thread, NULL, hang_in_child, NULL))
			_exit(2);
		poll(NULL, 0, 300); /* the server, in the parent, cannot tell this process */
		exit(2);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(count_of(&hanging), before + 1);
}

#define THREADS 4
#define EACH 50

static void *read_some(void *arg)
{
	struct one o;

	for (int i = 0; i < EACH; i++) {
		begin(arg, &o, "plain", NULL, http_now_ns() + 20000 * MS);
		end(&o, 0);
	}
	return NULL;
}

static void several_threads_share_a_client(void **state)
{
	struct s3_client *client = client_of(3, 2);
	pthread_t thread[THREADS];

	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, read_some, client), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	s3_client_destroy(client);
}

static void transfers_that_make_no_sense_are_refused(void **state)
{
	struct s3_client *client = client_of(1, 1);
	char key[S3_KEY_MAX + 2];
	struct object_transfer t = {.op = OBJECT_GET, .key = "k"};

	memset(key, 'k', sizeof(key) - 1);
	key[sizeof(key) - 1] = 0;
	assert_int_equal(s3_prepare(client, &t), -EINVAL);
	t.bytes = 1;
	t.key = key;
	assert_int_equal(s3_prepare(client, &t), -EINVAL);
	t.key = "";
	assert_int_equal(s3_prepare(client, &t), -EINVAL);
	s3_client_destroy(client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_waits_when_the_process_ends_is_cancelled),
		cmocka_unit_test(a_range_goes_into_several_buffers),
		cmocka_unit_test(what_waits_for_a_connection_ends_by_its_deadline),
		cmocka_unit_test(no_pause_reaches_beyond_the_deadline),
		cmocka_unit_test(a_deadline_in_a_later_try_tells_why_the_one_before_has_failed),
		cmocka_unit_test(a_failure_is_told_with_the_object_the_store_and_what_to_do),
		cmocka_unit_test(a_stop_ends_what_runs_what_waits_and_what_pauses),
		cmocka_unit_test(a_stop_that_comes_before_its_post_is_seen),
		cmocka_unit_test(an_object_that_may_be_the_writes_own_is_no_other),
		cmocka_unit_test(a_write_in_parts_that_is_stopped_is_aborted_before_the_client_is_gone),
		cmocka_unit_test(several_threads_share_a_client),
		cmocka_unit_test(transfers_that_make_no_sense_are_refused),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
