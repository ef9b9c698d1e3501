/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error.h"
#include "base/shared_memory.h"
#include "xfer/agent.h"
#include "xfer/pieces.h"

#define TRIES 64u /* messages before the answer: revocations */

/* ---- this process's sections ------------------------------------------------------------------------------------------- */

/* No seal forbids holes in a file that is to be written. tmpfs gives a new page for one; of huge pages there may be none, which is a SIGBUS, too. */
static int check_pages(int fd)
{
	struct statfs fs;

	if (fstatfs(fd, &fs))
		return tn_fail(-errno, "the peer's memfd: %s", strerror(errno));
	if (fs.f_type == HUGETLBFS_MAGIC)
		return tn_fail(-EPERM, "the peer's memfd has reserved huge pages (MFD_HUGETLB): the peer can punch a hole, and where no page is left that is a SIGBUS");
	return 0;
}

static int check_seals(int fd, const char *whose)
{
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0)
		return tn_fail(-EPERM, "%s file is no memfd: only a memfd can be sealed against being made shorter", whose);
	if (!(seals & F_SEAL_SHRINK))
		return tn_fail(-EPERM, "%s memfd can be made shorter, which would be a SIGBUS: seal it (fcntl F_ADD_SEALS, F_SEAL_SHRINK)", whose);
	return 0;
}

int tn_xfer_share_section(struct tn_xfer_sec *sec, const char *meta)
{
	const void *address = (const void *)(uintptr_t)sec->address;
	uint64_t bytes = sec->end - sec->address, offset;
	int rc;

	if (sec->segment != TN_XFER_DRAM)
		return 0;
	if (tn_memory_file(address, bytes, &offset) >= 0) {
		sec->backends |= TN_XFER_SEC_SHARED;
		return 0;
	}
	if (!meta || strcmp(meta, "memfd"))
		return 0;
	sec->shared_fd = tn_shared_file(address, bytes, &sec->shared_offset);
	if (sec->shared_fd < 0)
		return tn_fail(-EINVAL, "%llu bytes at %#llx are no shared mapping (MAP_SHARED) of a memfd that is open for reading and writing", (unsigned long long)bytes,
			       (unsigned long long)sec->address);
	rc = check_seals(sec->shared_fd, "the section's");
	if (rc == 0)
		sec->backends |= TN_XFER_SEC_SHARED;
	return rc;
}

int tn_xfer_shared_file(const struct tn_xfer_agent *a, uint64_t id, int *fd, uint64_t *offset)
{
	for (uint32_t i = 0; i < a->table.n; i++) {
		const struct tn_xfer_sec *sec = a->table.entry[i].sec;

		if (sec->id != id)
			continue;
		if (sec->revoked || !(sec->backends & TN_XFER_SEC_SHARED))
			break;
		*fd = sec->shared_fd;
		*offset = sec->shared_offset;
		if (*fd < 0)
			*fd = tn_memory_file((const void *)(uintptr_t)sec->address, sec->end - sec->address, offset);
		return *fd < 0 ? -ENOTSUP : 0;
	}
	return -ENOENT;
}

bool tn_xfer_send_shared(int sock, const struct tn_xfer_shared *answer, int fd)
{
	struct {
		struct tn_xfer_message head;
		struct tn_xfer_shared body;
	} out = {{TN_XFER_SHARED, sizeof(*answer)}, *answer};
	_Alignas(struct cmsghdr) unsigned char control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {&out, sizeof(out)};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *c;

	if (answer->rc == 0) {
		m.msg_control = control;
		m.msg_controllen = sizeof(control);
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	}
	return sendmsg(sock, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(out);
}

/* ---- a peer's sections ------------------------------------------------------------------------------------------------- */

int tn_xfer_map_file(int fd, uint64_t offset, uint64_t bytes, struct tn_xfer_mapped *out)
{
	uint64_t skip = offset % (uint64_t)sysconf(_SC_PAGESIZE), end;
	struct stat st;
	void *base;
	int rc = check_seals(fd, "the peer's");

	if (rc == 0)
		rc = check_pages(fd);
	if (rc)
		return rc;
	if (fstat(fd, &st))
		return tn_fail(-errno, "the peer's memfd: %s", strerror(errno));
	if (__builtin_add_overflow(offset, bytes, &end) || end > (uint64_t)st.st_size)
		return tn_fail(-ERANGE, "the peer's memfd has %lld bytes, its section begins at %llu and has %llu", (long long)st.st_size, (unsigned long long)offset,
			       (unsigned long long)bytes);
	base = mmap(NULL, bytes + skip, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(offset - skip));
	if (base == MAP_FAILED)
		return tn_fail(-errno, "the peer's memfd cannot be mapped: %s", strerror(errno));
	madvise(base, bytes + skip, MADV_DONTFORK);
	*out = (struct tn_xfer_mapped){.base = base, .bytes = bytes + skip, .at = (unsigned char *)base + skip};
	return 0;
}

/* One descriptor, or -1; any others are closed. */
static int take_descriptor(struct msghdr *m)
{
	int fd = -1;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		for (size_t at = 0; c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && at + CMSG_LEN(sizeof(int)) <= c->cmsg_len; at += sizeof(int)) {
			int one;

			memcpy(&one, CMSG_DATA(c) + at, sizeof(one));
			if (fd < 0)
				fd = tn_above_streams(one);
			else
				close(one);
		}
	}
	return fd;
}

/* The head of a message, and a descriptor if one came with it. */
static int receive_head(int sock, struct tn_xfer_message *head, int *fd, uint64_t deadline_ns)
{
	_Alignas(struct cmsghdr) unsigned char control[CMSG_SPACE(4 * sizeof(int))];
	struct iovec iov = {head, sizeof(*head)};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	ssize_t n;
	int rc;

	*fd = -1;
	while ((n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC)) < 0 && (errno == EAGAIN || errno == EINTR)) {
		rc = tn_xfer_socket_wait(sock, POLLIN, deadline_ns);
		if (rc)
			return rc;
	}
	if (n <= 0)
		return tn_fail(-ECONNRESET, "the other agent has closed the connection");
	*fd = take_descriptor(&m);
	rc = (size_t)n < sizeof(*head) ? tn_xfer_receive_bytes(sock, (char *)head + n, sizeof(*head) - (size_t)n, deadline_ns) : 0;
	return rc;
}

/* Nothing is used on this connection, so that revocations on the way are confirmed at once. */
static int confirm(int sock, uint32_t bytes, uint64_t deadline_ns)
{
	unsigned char ids[sizeof(uint64_t) * (TN_XFER_REVOKE_IDS + 1)];
	int rc;

	if (bytes < sizeof(uint64_t) || bytes > sizeof(ids))
		return tn_fail(-EPROTO, "a revocation of %u bytes", bytes);
	rc = tn_xfer_receive_bytes(sock, ids, bytes, deadline_ns);
	return rc ? rc : tn_xfer_send_all(sock, TN_XFER_REVOKED, ids, sizeof(uint64_t), deadline_ns);
}

/* Asks for the file of a section: 0 and *fd, which is the caller's; what the other side says; or -ECONNRESET, -ETIMEDOUT, -EPROTO. */
static int ask(int sock, uint64_t id, uint64_t deadline_ns, int *fd, uint64_t *offset)
{
	struct tn_xfer_shared answer;
	struct tn_xfer_message head;
	int rc = tn_xfer_send_all(sock, TN_XFER_SHARE, &id, sizeof(id), deadline_ns);

	*fd = -1;
	for (uint32_t i = 0; rc == 0; i++) {
		rc = receive_head(sock, &head, fd, deadline_ns);
		if (rc || head.type != TN_XFER_REVOKE || *fd >= 0 || i == TRIES)
			break;
		rc = confirm(sock, head.bytes, deadline_ns);
	}
	if (rc == 0 && (head.type != TN_XFER_SHARED || head.bytes != sizeof(answer)))
		rc = tn_fail(-EPROTO, "message %u of %u bytes in place of a file", head.type, head.bytes);
	if (rc == 0)
		rc = tn_xfer_receive_bytes(sock, &answer, sizeof(answer), deadline_ns);
	if (rc == 0 && (answer.rc || *fd < 0))
		rc = tn_fail(answer.rc < 0 && answer.rc >= -4095 ? answer.rc : -EPROTO, "the other agent gives no file of its section");
	if (rc == 0)
		*offset = answer.offset;
	else if (*fd >= 0)
		close(*fd);
	return rc;
}

static bool may_map(const struct tn_xfer_agent *a, const struct tn_xfer_peer *p)
{
	for (uint32_t i = 0; i < a->nbackends; i++)
		if (a->backend[i].ops->flags & TN_XFER_USES_MAPPED && p->reachable & 1u << i)
			return !strncmp(p->head.address, "unix:", 5);
	return false;
}

/* With the lock, which is given back meanwhile. False: the connection is of no more use. */
static bool map_one(struct tn_xfer_agent *a, struct tn_xfer_peer *p, struct tn_xfer_sec *sec, int sock, uint64_t deadline_ns)
{
	struct tn_xfer_mapped mapped;
	uint64_t offset = 0;
	bool usable;
	int fd, rc;

	pthread_mutex_unlock(&a->lock);
	rc = ask(sock, sec->id, deadline_ns, &fd, &offset);
	usable = rc != -ECONNRESET && rc != -ETIMEDOUT && rc != -EPROTO;
	if (rc == 0) {
		rc = tn_xfer_map_file(fd, offset, sec->end - sec->address, &mapped);
		close(fd);
	}
	pthread_mutex_lock(&a->lock);
	if (rc) {
		sec->unmappable = usable;
		memcpy(p->unmapped, tn_error_last()->text, sizeof(p->unmapped) - 1);
		tn_log(&a->log, TN_LOG_WARN, "agent %s: its shared memory at %#llx is not mapped: %s", p->head.name, (unsigned long long)sec->address, p->unmapped);
	} else if (sec->mapped.base) {
		munmap(mapped.base, mapped.bytes); /* another thread was faster */
	} else {
		sec->mapped = mapped;
	}
	return usable;
}

void tn_xfer_peer_map(struct tn_xfer_agent *a, struct tn_xfer_peer *p, const struct tn_xfer_pieces *pieces, uint64_t deadline_ns)
{
	const struct tn_xfer_sec *last = NULL;
	struct tn_xfer_socket sock = {.fd = -1};
	bool usable = may_map(a, p);

	for (uint32_t i = 0; i < pieces->npieces && usable; i++) {
		struct tn_xfer_sec *sec = pieces->piece[i].remote_section;

		if (sec == last || !(sec->backends & TN_XFER_SEC_SHARED) || sec->mapped.base || sec->unmappable || sec->revoked)
			continue;
		last = sec;
		if (sock.fd < 0 && tn_xfer_peer_open(a, p, deadline_ns, &sock)) {
			memcpy(p->unmapped, tn_error_last()->text, sizeof(p->unmapped) - 1);
			return;
		}
		usable = map_one(a, p, sec, sock.fd, deadline_ns);
	}
	if (sock.fd >= 0)
		tn_xfer_socket_close(&sock);
}
