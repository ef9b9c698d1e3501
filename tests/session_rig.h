/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests of sessions share: a cache that is served, caches attached to it, and other processes. A process of a test is the test's program
 * started anew with the name of a function and the rig's directory, because threads do not survive a fork.
 */
#ifndef TN_SESSION_RIG_H
#define TN_SESSION_RIG_H

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/core.h"
#include "front/attach.h"
#include "front/cache_rig.h"

#define BLOCKS 32u

/*
 * A failed assertion of any thread ends the program. If the next test began instead, the threads of this one would go on with its stack, which is gone,
 * and whatever waits for its locks, its hooks and its processes would hang.
 */
static __attribute__((constructor)) void end_at_the_first_failure(void)
{
	setenv("CMOCKA_TEST_ABORT", "1", 1);
}
#define PATH sizeof(((struct sockaddr_un *)NULL)->sun_path)

static inline void socket_path(const struct rig *r, char path[PATH])
{
	int n = snprintf(path, PATH, "%s/socket", r->dir);

	assert_true(n > 0 && (size_t)n < PATH);
}

/* A cache that is served, with a few blocks, and with all threads that it ever starts for itself. */
static inline void set_up(struct rig *r)
{
	char path[PATH];

	rig_set_up(r, 64u << 20, 8u << 20, 64);
	socket_path(r, path);
	assert_int_equal(tn_cache_serve(r->cache, path, NULL), 0);
	assert_int_equal(rig_save(r->s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_flush(r), 0);
}

/* Serves a rig's cache: who has the tenant's name as token may see that tenant only, and who has none all of them. */
static inline void serve_tenant(const struct rig *r, const char *tenant)
{
	struct tn_serve_rule rules[2];
	struct tn_serve_opts o;
	char path[PATH];

	for (uint32_t i = 0; i < 2; i++) {
		tn_serve_rule_init(&rules[i]);
		rules[i].uid = geteuid();
	}
	rules[0].token = tenant;
	rules[0].tenants = &tenant;
	rules[0].ntenants = 1;
	tn_serve_opts_init(&o);
	o.rules = rules;
	o.nrules = 2;
	socket_path(r, path);
	assert_int_equal(tn_cache_serve(r->cache, path, &o), 0);
}

/* A rig in a directory that is there, with the options of set_up. */
static inline void init_in(const char *dir, struct rig *r)
{
	rig_init_in(r, dir, 64u << 20, 0, 64);
}

/* Of tn_cache_attach: as long as a busy machine may take; or until then. */
static inline const struct tn_attach_opts *attach_by(uint64_t deadline_ns)
{
	static __thread struct tn_attach_opts o;

	tn_attach_opts_init(&o);
	o.deadline_ns = deadline_ns;
	return &o;
}

static inline const struct tn_attach_opts *patient(void)
{
	return attach_by(tn_test_deadline());
}

/* The rig of a cache that has attached to the one in the directory. */
static inline void attach(const char *dir, struct rig *r)
{
	char path[PATH];

	init_in(dir, r);
	r->o.attached = true;
	socket_path(r, path);
	assert_int_equal(tn_cache_attach(path, patient(), &r->cache), 0);
	assert_int_equal(rig_space_open(r, &(struct rig_space_opts){0}, r->s), 0);
}

/* Likewise, with a space whose pool is staged: with session memory for so many blocks, 0: for all. */
static inline void attach_staged(const char *dir, uint32_t stage_blocks, struct rig *r)
{
	char path[PATH];

	init_in(dir, r);
	r->o.attached = r->o.staged = true;
	r->o.stage_blocks = stage_blocks;
	socket_path(r, path);
	assert_int_equal(tn_cache_attach(path, patient(), &r->cache), 0);
	assert_int_equal(rig_space_open(r, &(struct rig_space_opts){0}, r->s), 0);
	assert_non_null(r->s->pool->stage);
}

static inline void detach(struct rig *r)
{
	rig_space_close(r->s);
	assert_int_equal(tn_cache_close(r->cache), 0);
}

/* Another process: this program, too, started anew, because threads do not survive a fork. It ends with the thread that starts it. */
static inline pid_t start(const char *body, const struct rig *r)
{
	pid_t pid, parent = getpid();

	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent) /* the parent ended first, and prctl() asked for later ends only */
			_exit(127);
		alarm(tn_test_soak() ? 3600 : 180);
		execl("/proc/self/exe", "session-test", body, r->dir, (char *)NULL);
		_exit(127);
	}
	return pid;
}

/* Another process that becomes the owner, or is it again; returns once it can be attached to. */
static inline pid_t start_owner(const char *body, const struct rig *r)
{
	pid_t pid = start(body, r);
	struct tn_cache *cache;
	char path[PATH];
	int rc;

	socket_path(r, path);
	while ((rc = tn_cache_attach(path, patient(), &cache)) == -ENOENT || rc == -ECONNREFUSED)
		usleep(1000);
	assert_int_equal(rc, 0);
	assert_int_equal(tn_cache_close(cache), 0);
	return pid;
}

static inline int end_of(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* kill() alone returns before all threads have stopped. */
static inline void stop_and_wait(pid_t pid)
{
	assert_int_equal(kill(pid, SIGSTOP), 0);
	assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
}

static inline void kill_and_wait(pid_t pid)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* What the owner's process has of sessions; maps: of the library's shared files. */
struct held {
	uint32_t descriptors, threads, maps, sessions, operations, leases;
};

/* On the owner thread. */
static inline int count_operations(struct tn_cache *cache, void *arg)
{
	struct held *h = arg;

	for_each_session(session, cache) {
		h->sessions++;
		for (uint32_t i = 0; i < session->region.counts.ops; i++)
			h->operations += session->ops[i].op.alive;
	}
	return 0;
}

static inline uint32_t entries(const char *path)
{
	DIR *d = opendir(path);
	uint32_t n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static inline struct held held_by(struct rig *r)
{
	struct held h = {.descriptors = entries("/proc/self/fd"), .threads = entries("/proc/self/task")};
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps))
		h.maps += strstr(line, "/memfd:tenuto") != NULL;
	fclose(maps);
	for (uint32_t i = 0; i < r->cache->matches->nleases; i++)
		h.leases += __atomic_load_n(&r->cache->matches->leases[i].generation, __ATOMIC_ACQUIRE) & 1;
	tn_owner_call(r->cache, count_operations, &h);
	return h;
}

static inline bool is_more(const struct held *h, const struct held *than)
{
	return h->descriptors > than->descriptors || h->threads > than->threads || h->maps > than->maps || h->sessions > than->sessions ||
	       h->operations > than->operations || h->leases > than->leases;
}

/* Waits until the process has no more than that; working: others work meanwhile, whose operations and leases do not count. */
static inline void has_only(struct rig *r, const struct held *before, bool working)
{
	uint64_t until = tn_test_deadline();
	struct held most = *before, now;

	if (working)
		most.operations = most.leases = UINT32_MAX;
	for (now = held_by(r); is_more(&now, &most) && tn_test_now() < until; now = held_by(r))
		usleep(1000);
	if (is_more(&now, &most))
		fail_msg("left: %u descriptors of %u, %u threads of %u, %u maps of %u, %u sessions of %u, %u operations, %u leases",
			 now.descriptors, before->descriptors, now.threads, before->threads, now.maps, before->maps, now.sessions,
			 before->sessions, now.operations, now.leases);
}

static inline void all_is_given_back(struct rig *r, const struct held *before)
{
	has_only(r, before, false);
}

/* What a program with other processes does when it is started as one of them; -1: it is not. */
struct body {
	const char *name;
	int (*run)(const char *dir);
};

static inline int run_body(int argc, char **argv, const struct body *bodies)
{
	for (; argc == 3 && bodies->name; bodies++)
		if (strcmp(argv[1], bodies->name) == 0)
			return bodies->run(argv[2]);
	return -1;
}

/* The socket of the session: the one that the process has. */
static inline int session_socket(void)
{
	for (int fd = 3; fd < 256; fd++) {
		socklen_t len = sizeof(int);
		int type = 0;

		if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_SEQPACKET)
			return fd;
	}
	return -1;
}

static inline int connect_to(const char *path, int type)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, type, 0);

	memcpy(a.sun_path, path, strlen(path) + 1);
	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

#endif
