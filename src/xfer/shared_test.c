/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of memfds between processes: moved without CMA, which seccomp forbids here after the first tests, and never a SIGBUS. */
#include <fcntl.h>
#include <stdio.h>

#include <tenuto/shared_memory.h>

#include "peer_rig.h"
#include "tn_test_seccomp.h"
#include "xfer/shared.h"

static struct peer_message message;
static bool no_cma;

/* A memfd of PEER_BYTES with these seals, mapped; its descriptor stays open. */
static unsigned char *memfd_new(int seals, int *fd)
{
	void *p;

	*fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_true(*fd >= 0);
	assert_int_equal(ftruncate(*fd, PEER_BYTES), 0);
	if (seals)
		assert_int_equal(fcntl(*fd, F_ADD_SEALS, seals), 0);
	p = mmap(NULL, PEER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	return p;
}

static struct tn_xfer_agent *agent_new(void)
{
	const char *specs[] = {"memory"};
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_agent *a;

	tn_xfer_agent_opts_init(&opts);
	opts.name = "test";
	opts.backends = specs;
	opts.nbackends = 1;
	assert_int_equal(tn_xfer_agent_create(&opts, &a), 0);
	return a;
}

/* An agent of the test, and a peer whose memory is a memfd or not. */
struct pair {
	struct peer_process peer;
	int fd; /* of the peer's memory */
	struct tn_xfer_agent *agent;
	unsigned char *memory;
	struct tn_xfer_list *local, *remote;
	struct tn_xfer_request *request;
};

static void pair_new(struct pair *p, bool memfd)
{
	struct tn_xfer_section s = {.bytes = PEER_BYTES};
	struct tn_xfer_run run = {.bytes = 4096, .stride = 4096, .count = PEER_BYTES / 4096};

	*p = (struct pair){.peer = {.name = "peer", .backends = "memory", .meta = memfd ? "memfd" : NULL}, .fd = -1};
	if (memfd)
		p->peer.memory = memfd_new(F_SEAL_SHRINK, &p->fd);
	peer_start(&p->peer);
	p->memory = mmap(NULL, PEER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(p->memory, MAP_FAILED);
	p->agent = agent_new();
	s.address = run.address = (uintptr_t)p->memory;
	assert_int_equal(tn_xfer_register(p->agent, TN_XFER_DRAM, &s, 1), 0);
	assert_true(peer_ask(&p->peer, &message, 'm', 0) > 0);
	assert_int_equal(tn_xfer_load(p->agent, message.data, message.bytes, NULL), 0);
	assert_int_equal(tn_xfer_list_create(p->agent, NULL, TN_XFER_DRAM, &run, 1, &p->local), 0);
	run.address = (uintptr_t)p->peer.memory;
	assert_int_equal(tn_xfer_list_create(p->agent, "peer", TN_XFER_DRAM, &run, 1, &p->remote), 0);
}

static int request_new(struct pair *p, enum tn_xfer_op op)
{
	return tn_xfer_request_create(p->agent, op, p->local, NULL, p->remote, NULL, 0, NULL, &p->request);
}

static void request_free(struct pair *p)
{
	assert_int_equal(tn_xfer_release(p->request), 0);
	p->request = NULL;
}

static void pair_free(struct pair *p, int sig)
{
	tn_xfer_list_destroy(p->local);
	tn_xfer_list_destroy(p->remote);
	assert_int_equal(tn_xfer_release(p->request), 0);
	assert_int_equal(tn_xfer_agent_destroy(p->agent), 0);
	if (sig >= 0)
		peer_end(&p->peer, sig);
	munmap(p->memory, PEER_BYTES);
	munmap(p->peer.memory, PEER_BYTES);
	if (p->fd >= 0)
		close(p->fd);
}

static void fill(unsigned char *to, unsigned salt)
{
	for (size_t i = 0; i < PEER_BYTES; i++)
		to[i] = (unsigned char)(i * 31 + i / 4096 + salt);
}

/* Mappings of memfds named "test" in this process. */
static unsigned mappings(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[1024];
	unsigned n = 0;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "/memfd:test") != NULL;
	fclose(f);
	return n;
}

static void bytes_go_both_ways(void **state)
{
	struct pair p;

	pair_new(&p, true);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(tn_test_ended(request_new(&p, i ? TN_XFER_READ : TN_XFER_WRITE)), 0);
		fill(i ? p.peer.memory : p.memory, 3 + i);
		assert_int_equal(tn_xfer_post(p.request, tn_test_deadline(), "x", 1), 0);
		assert_int_equal(tn_xfer_wait(p.request, tn_test_deadline()), 0);
		assert_memory_equal(p.memory, p.peer.memory, PEER_BYTES);
		assert_int_equal(peer_ask(&p.peer, &message, 'n', 0), 1);
		request_free(&p);
	}
	assert_int_equal(mappings(), 2); /* the test's own, and the agent's */
	pair_free(&p, 0);
	assert_int_equal(mappings(), 0);
}

static void memory_that_cannot_be_mapped_needs_cma(void **state)
{
	struct pair p;
	int rc;

	pair_new(&p, false);
	rc = request_new(&p, TN_XFER_WRITE);
	if (no_cma) {
		assert_int_equal(rc, -ENOTSUP);
		assert_non_null(strstr(tn_error_last()->text, "cannot be read (process_vm_readv: Operation not permitted)"));
		assert_non_null(strstr(tn_error_last()->text, "a remote section is not mapped"));
	} else {
		assert_int_equal(rc, 0);
		fill(p.memory, 5);
		assert_int_equal(tn_xfer_post(p.request, tn_test_deadline(), NULL, TN_XFER_NO_NOTIFICATION), 0);
		assert_int_equal(tn_xfer_wait(p.request, tn_test_deadline()), 0);
		assert_memory_equal(p.memory, p.peer.memory, PEER_BYTES);
	}
	pair_free(&p, 0);
}

static void what_a_peer_takes_back_is_unmapped(void **state)
{
	struct pair p;

	pair_new(&p, true);
	assert_int_equal(tn_test_ended(request_new(&p, TN_XFER_WRITE)), 0);
	assert_int_equal(mappings(), 2);
	assert_int_equal(peer_ask(&p.peer, &message, 'd', 0), 0);
	assert_int_equal(tn_xfer_post(p.request, tn_test_deadline(), NULL, TN_XFER_NO_NOTIFICATION), -ESTALE);
	request_free(&p);
	tn_xfer_list_destroy(p.remote);
	p.remote = NULL;
	assert_int_equal(mappings(), 1);
	pair_free(&p, 0);
}

static void a_peer_that_is_killed_ends_its_requests(void **state)
{
	struct pair p;
	int rc = 0;

	pair_new(&p, true);
	assert_int_equal(tn_test_ended(request_new(&p, TN_XFER_WRITE)), 0);
	peer_end(&p.peer, SIGKILL);
	for (uint64_t until = tn_test_deadline(); rc != -ECONNRESET && tn_test_now() < until;) {
		rc = tn_xfer_post(p.request, tn_test_deadline(), NULL, TN_XFER_NO_NOTIFICATION);
		if (rc == 0)
			rc = tn_xfer_wait(p.request, tn_test_deadline());
	}
	assert_int_equal(rc, -ECONNRESET);
	assert_int_equal(tn_xfer_cancel(p.request, tn_test_deadline()), 0);
	pair_free(&p, -1);
}

/* Memory of tn_memory_alloc needs no word: two agents of one process, and CMA forbidden. */
static void memory_of_the_library_is_shared_as_it_is(void **state)
{
	const char *specs[] = {"memory"};
	struct tn_xfer_section s = {.bytes = PEER_BYTES};
	struct tn_xfer_run run = {.bytes = PEER_BYTES, .count = 1};
	struct tn_xfer_agent *a, *b;
	struct tn_xfer_list *local, *remote;
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_request *q;
	void *mine, *theirs;
	uint64_t page;
	int64_t n;

	assert_int_equal(tn_memory_alloc(PEER_BYTES, NULL, &mine), 0);
	assert_int_equal(tn_memory_alloc(PEER_BYTES, &page, &theirs), 0);
	if (no_cma && page != (uint64_t)sysconf(_SC_PAGESIZE)) {
		tn_memory_free(mine);
		tn_memory_free(theirs);
		tn_test_skip("memory of reserved huge pages is not mapped, and there is no CMA");
	}
	a = agent_new();
	tn_xfer_agent_opts_init(&opts);
	opts.name = "other";
	opts.backends = specs;
	opts.nbackends = 1;
	assert_int_equal(tn_xfer_agent_create(&opts, &b), 0);
	s.address = (uintptr_t)mine;
	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &s, 1), 0);
	s.address = (uintptr_t)theirs + 4096; /* not from its begin on */
	s.bytes -= 4096;
	assert_int_equal(tn_xfer_register(b, TN_XFER_DRAM, &s, 1), 0);
	n = tn_xfer_metadata(b, TN_XFER_DRAM, NULL, 0, message.data, sizeof(message.data));
	assert_int_equal(tn_xfer_load(a, message.data, (size_t)n, NULL), 0);
	run.address = (uintptr_t)mine + 4096;
	run.bytes -= 4096;
	assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &run, 1, &local), 0);
	run.address = s.address;
	assert_int_equal(tn_xfer_list_create(a, "other", TN_XFER_DRAM, &run, 1, &remote), 0);
	assert_int_equal(tn_test_ended(tn_xfer_request_create(a, TN_XFER_WRITE, local, NULL, remote, NULL, 0, NULL, &q)), 0);
	fill(mine, 9);
	assert_int_equal(tn_xfer_post(q, tn_test_deadline(), NULL, TN_XFER_NO_NOTIFICATION), 0);
	assert_int_equal(tn_xfer_wait(q, tn_test_deadline()), 0);
	assert_memory_equal((char *)mine + 4096, (char *)theirs + 4096, PEER_BYTES - 4096);
	tn_xfer_release(q);
	tn_xfer_list_destroy(local);
	tn_xfer_list_destroy(remote);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
	assert_int_equal(tn_memory_free(mine), 0);
	assert_int_equal(tn_memory_free(theirs), 0);
}

static void refuse_section(struct tn_xfer_agent *a, void *address, uint64_t bytes, int error, const char *text)
{
	struct tn_xfer_section s = {.address = (uintptr_t)address, .bytes = bytes, .meta = "memfd"};

	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &s, 1), error);
	assert_non_null(strstr(tn_error_last()->text, text));
}

static void memory_that_others_cannot_map_safely_is_refused(void **state)
{
	struct tn_xfer_agent *a = agent_new();
	int fd, file = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	unsigned char *memory = memfd_new(0, &fd);
	void *own = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	refuse_section(a, memory, PEER_BYTES, -EPERM, "F_SEAL_SHRINK");
	refuse_section(a, own, 4096, -EINVAL, "no shared mapping");
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	refuse_section(a, memory + PEER_BYTES - 4096, 8192, -EINVAL, "no shared mapping"); /* more than is mapped */
	if (file >= 0) {
		void *p;

		assert_int_equal(ftruncate(file, 4096), 0);
		p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		assert_ptr_not_equal(p, MAP_FAILED);
		refuse_section(a, p, 4096, -EPERM, "is no memfd");
		munmap(p, 4096);
		close(file);
	}
	munmap(own, 4096);
	munmap(memory, PEER_BYTES);
	close(fd);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

/* What a peer sends is checked again: it may lie. */
static void a_file_that_a_peer_sends_is_checked(void **state)
{
	struct tn_xfer_mapped m;
	int fd, sealed;
	unsigned char *memory = memfd_new(0, &fd), *other = memfd_new(F_SEAL_SHRINK, &sealed);

	assert_int_equal(tn_xfer_map_file(fd, 0, 4096, &m), -EPERM);
	assert_int_equal(tn_xfer_map_file(sealed, 0, PEER_BYTES + 1, &m), -ERANGE);
	assert_int_equal(tn_xfer_map_file(sealed, UINT64_MAX, 4096, &m), -ERANGE);
	assert_int_equal(tn_xfer_map_file(sealed, PEER_BYTES - 100, 101, &m), -ERANGE);
	assert_int_equal(tn_xfer_map_file(sealed, PEER_BYTES - 100, 100, &m), 0);
	memset(other + PEER_BYTES - 100, 7, 100);
	assert_int_equal(m.at[0], 7);
	assert_int_equal(m.at[99], 7);
	assert_int_equal(ftruncate(sealed, 0), -1); /* what is mapped stays */
	munmap(m.base, m.bytes);
	munmap(memory, PEER_BYTES);
	munmap(other, PEER_BYTES);
	close(fd);
	close(sealed);
	fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
	if (fd < 0)
		return; /* a kernel without huge pages */
	assert_int_equal(ftruncate(fd, 64 << 20), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	assert_int_equal(tn_xfer_map_file(fd, 0, 4096, &m), -EPERM);
	assert_non_null(strstr(tn_error_last()->text, "huge pages"));
	close(fd);
}

/* For the tests behind this one; seccomp takes nothing back. */
static void cma_is_forbidden_from_here_on(void **state)
{
	if (tn_test_forbid(TN_FORBID_CMA, EPERM))
		tn_test_skip("seccomp takes no filter here");
	no_cma = true;
}

#define T(f) {#f, f, NULL, NULL, NULL}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		T(bytes_go_both_ways),
		T(memory_that_cannot_be_mapped_needs_cma),
		T(what_a_peer_takes_back_is_unmapped),
		T(a_peer_that_is_killed_ends_its_requests),
		T(memory_of_the_library_is_shared_as_it_is),
		T(memory_that_others_cannot_map_safely_is_refused),
		T(a_file_that_a_peer_sends_is_checked),
	};
	enum { N = sizeof(tests) / sizeof(tests[0]) };
	static char names[N][128];
	struct CMUnitTest all[2 * N + 1];

	for (size_t i = 0; i < N; i++) {
		snprintf(names[i], sizeof(names[i]), "without CMA: %s", tests[i].name);
		all[i] = all[N + 1 + i] = tests[i];
		all[N + 1 + i].name = names[i];
	}
	all[N] = (struct CMUnitTest)T(cma_is_forbidden_from_here_on);
	return _cmocka_run_group_tests("xfer-shared", all, 2 * N + 1, NULL, NULL);
}
