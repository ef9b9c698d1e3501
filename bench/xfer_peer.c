/* SPDX-License-Identifier: Apache-2.0 */
/* The other process of `tenuto bench xfer`: an agent with memory of its own, or memory that both share. */
#include "xfer_bench.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define METADATA_BYTES 65536u

int xfer_agent_open(const char *name, const char *spec, struct tn_xfer_agent **out)
{
	struct tn_xfer_agent_opts opts;

	tn_xfer_agent_opts_init(&opts);
	opts.name = name;
	opts.backends = &spec;
	opts.nbackends = 1;
	return tn_xfer_agent_create(&opts, out);
}

/* Registers the memory, gives its metadata, and lives until the socket closes. */
static void run_child(int sock, const char *spec, void *memory, uint64_t bytes)
{
	struct tn_xfer_section s = {.address = (uintptr_t)memory, .bytes = bytes};
	unsigned char metadata[METADATA_BYTES], end;
	struct tn_xfer_agent *agent;
	int64_t n;

	bench_die_with_parent();
	if (xfer_agent_open(XFER_PEER, spec, &agent) || tn_xfer_register(agent, TN_XFER_DRAM, &s, 1))
		_exit(1);
	n = tn_xfer_metadata(agent, TN_XFER_DRAM, NULL, 0, metadata, sizeof(metadata));
	if (n <= 0 || n > (int64_t)sizeof(metadata) || send(sock, metadata, (size_t)n, 0) != n)
		_exit(1);
	while (recv(sock, &end, 1, 0) > 0)
		;
	tn_xfer_agent_destroy(agent);
	_exit(0);
}

int xfer_peer_start(struct xfer_peer *p, const char *spec, void *memory, uint64_t bytes)
{
	int both[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, both))
		return cli_error(CLI_ENVIRONMENT, "socketpair: %s", strerror(errno));
	fflush(NULL);
	p->pid = fork();
	if (p->pid == 0) {
		close(both[0]);
		run_child(both[1], spec, memory, bytes);
	}
	close(both[1]);
	p->sock = both[0];
	return p->pid < 0 ? cli_error(CLI_ENVIRONMENT, "fork: %s", strerror(errno)) : CLI_OK;
}

int xfer_peer_load(const struct xfer_peer *p, struct tn_xfer_agent *agent)
{
	unsigned char metadata[METADATA_BYTES];
	ssize_t n = recv(p->sock, metadata, sizeof(metadata), 0);

	if (n <= 0)
		return cli_error(CLI_PROBLEM, "the other process ended");
	return tn_xfer_load(agent, metadata, (size_t)n, NULL);
}

void xfer_peer_end(struct xfer_peer *p)
{
	if (p->pid <= 0)
		return;
	close(p->sock);
	waitpid(p->pid, NULL, 0);
}
