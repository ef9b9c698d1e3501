/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The I/O contract: files by handle, requests submitted in batches, completions by polling.
 *
 * Types and rules only. Engines (src/ioengine: io_uring, threaded POSIX; wrappers: faulty) and the
 * simulated disk (sim/) implement it; the store and the tiers above see nothing else.
 *
 * Rules every engine keeps, and one test suite checks on all of them (src/ioengine/io_test.c):
 *  - A request, its iovec array and its buffers belong to the engine from a submit that took it
 *    until the poll that returns it - also after cancel.
 *  - Every taken request is returned by poll exactly once, in any order.
 *  - status is 0 only if every byte was moved. A transfer that ends early (end of file, full
 *    disk) is continued by the engine and, where it cannot be, completes with an error;
 *    transferred then says how many bytes were moved.
 *  - One request's failure has no effect on another's.
 *  - Writes beyond the end may be refused with -ENOSPC: whoever wants a longer file allocates.
 *  - TN_IO_SYNC covers the requests whose completion poll had returned before it was submitted.
 *  - One thread, the owner, makes every call from create to destroy (an io_uring belongs to the
 *    thread that created it). wake alone may come from any thread.
 *  - open, close, allocate, stat, unlink, lend, adopt are synchronous and may take as long as the file system likes: they
 *    are for opening and closing. submit, poll, cancel and wake never wait for a file system. What a running owner needs
 *    from a file system it asks by requests: SYNC, ALLOCATE, STAT.
 *  - A file lent by one engine and adopted by another is one open file description: the lock that
 *    open took covers the I/O of both. The lender closes last, because its close gives the lock back.
 *  - map says of memory that many requests will name it. An engine that has no use for that has no such function, and requests
 *    name any memory, mapped or not. Mapped memory stays where it is until as many unmaps. No request may use it then, except where
 *    the memory is another's, too, who shares some of the bytes: for what is under way there the engine waits.
 *  - A wake makes the waiting poll return; if none waits, the next poll that would wait. Any poll may consume
 *    the wake. So after every poll, and before waiting again, the owner looks at what wakers left for it.
 */
#ifndef TN_IO_IO_H
#define TN_IO_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define TN_IO_ABI 5u
#define TN_IO_FILES_MAX 64u
#define TN_IO_NO_FILE UINT32_MAX /* no handle */

enum tn_io_op {
	TN_IO_READ,
	TN_IO_WRITE,
	TN_IO_SYNC, /* fdatasync of the file */
	TN_IO_ALLOCATE, /* does what allocate does; after -ECANCELED, too, the file is as it was */
	TN_IO_STAT, /* does what stat does */
	TN_IO_OPS,
};

/**
 * struct tn_io_req - one transfer, sync, allocation or query of a file
 * @op:          enum tn_io_op
 * @file:        handle from open
 * @offset:      bytes; with a direct file a multiple of its offset alignment
 * @length:      bytes, the sum of @iov; 0 for requests that transfer nothing
 * @iov_count:   any number from 1; beyond 1024 the transfer takes several system calls, one after another
 * @iov:         memory; no piece is empty; with a direct file each piece's address is a multiple of the
 *               memory alignment and its length of the offset alignment. SYNC has none. ALLOCATE has one piece without
 *               address; its length is the number of bytes to reserve from @offset on. STAT has one: a struct tn_io_stat
 * @done:        called by the *caller* of poll, never by the engine; free for the caller's use
 * @status:      out: 0 or -errno
 * @transferred: out: bytes moved; if status is not 0, at least that many bytes of the file are changed,
 *               or of the memory filled
 * @issue_ns:    out: when the engine handed the request to the kernel (the latency starts there)
 * @engine:      private to the engine while the request is in flight
 */
struct tn_io_req {
	uint8_t op;
	uint32_t file;
	uint64_t offset;
	uint32_t length;
	uint32_t iov_count;
	const struct iovec *iov;
	void (*done)(struct tn_io_req *req);
	void *owner;
	int status;
	uint32_t transferred;
	uint64_t issue_ns;
	uint64_t engine[6];
};

/**
 * struct tn_io_stat - properties of a file and of the medium under it
 * @size_bytes:   present length
 * @links:        names that the file has in directories; 0: the file was deleted, and its last close frees it
 * @offset_align: direct I/O alignment of offsets and lengths; 1 if the file is buffered
 * @memory_align: likewise of memory
 * @direct:       opened with O_DIRECT
 * @most_bytes:   that the file can have; 0: its file system says when it has no more
 * @in_memory:    the medium is this machine's memory: reserving bytes writes them
 */
struct tn_io_stat {
	uint64_t size_bytes;
	uint32_t offset_align;
	uint32_t memory_align;
	uint32_t links;
	uint64_t most_bytes;
	bool direct;
	bool in_memory;
};

#define TN_IO_CREATE 1u    /* create if missing, mode 0600; the directory entry is made durable */
#define TN_IO_EXCLUSIVE 2u /* with CREATE: -EEXIST if it exists */
#define TN_IO_READ_ONLY 4u
#define TN_IO_LOCK 8u /* exclusive lock on this very file description; -EBUSY if another holds it */
#define TN_IO_BUFFERED 16u /* do not ask for O_DIRECT (where it is not supported, the engine does without) */

/**
 * struct tn_io_lent - an open file on its way from the engine that opened it to one that adopts it
 * @fd:      the description; valid while the lender has the file open
 * @file:    the lender's handle
 * @wrapper: for a wrapper that must recognise the file in another wrapper of its kind; 0 otherwise
 * The other members say what the lender found out when it opened the file.
 */
struct tn_io_lent {
	int fd;
	uint32_t file;
	uint64_t wrapper;
	bool direct;
	bool read_only;
	uint32_t offset_align;
	uint32_t memory_align;
	char name[48];
};

struct tn_io;

struct tn_io_ops {
	size_t size; /* sizeof(struct tn_io_ops) of the engine's build */
	uint32_t abi; /* TN_IO_ABI */
	const char *name;
	/* 0 and *file, or -errno (ENOENT, EEXIST, EBUSY, EACCES, EMFILE, ...) with detail. */
	int (*open)(struct tn_io *io, const char *path, unsigned flags, uint32_t *file);
	/* -EBUSY while requests on the file are in flight. The lock is free on return. */
	int (*close)(struct tn_io *io, uint32_t file);
	int (*stat)(struct tn_io *io, uint32_t file, struct tn_io_stat *st);
	/* Reserve space and extend the file; new bytes read as zero. -ENOSPC leaves the file as it was. */
	int (*allocate)(struct tn_io *io, uint32_t file, uint64_t offset, uint64_t length);
	/* That the name is gone is durable on return. */
	int (*unlink)(struct tn_io *io, const char *path);
	/* Takes the first k of n requests and returns k; 0 when full (poll first). Never an error: a bad
	   request is taken and completes with -EINVAL. */
	unsigned (*submit)(struct tn_io *io, struct tn_io_req **reqs, unsigned n);
	/* Up to max completed requests; waits up to timeout_ns (0: not at all, UINT64_MAX: for ever) for
	   the first one or a wake. Returns the count, 0 after time-out or wake. */
	unsigned (*poll)(struct tn_io *io, struct tn_io_req **done, unsigned max, uint64_t timeout_ns);
	/* Ask for an early end. The request still completes, with -ECANCELED or as if never cancelled. -ENOENT:
	   the request is not in flight; -EAGAIN: poll first. */
	int (*cancel)(struct tn_io *io, struct tn_io_req *req);
	/* Fills in what another engine needs to use the open file, too; -EBADF, or -ENOTSUP where files are no
	   descriptors. */
	int (*lend)(struct tn_io *io, uint32_t file, struct tn_io_lent *lent);
	/* Opens a lent file, with a duplicate of its descriptor: 0 and *file, or -errno. */
	int (*adopt)(struct tn_io *io, const struct tn_io_lent *lent, uint32_t *file);
	/* Whole pages; 0, or -errno: requests that name it are slower, and it is not unmapped. Both NULL: the engine has no use for it. */
	int (*map)(struct tn_io *io, void *memory, uint64_t bytes);
	/* As it was mapped; nothing happens if it was not. */
	void (*unmap)(struct tn_io *io, void *memory, uint64_t bytes);
	/* Any thread: let a waiting poll return. Cheap when nobody waits. */
	void (*wake)(struct tn_io *io);
	/* Nothing may be in flight. NULL-safe through tn_io_destroy. */
	void (*destroy)(struct tn_io *io);
};

/* The first member of every engine's object. */
struct tn_io {
	const struct tn_io_ops *ops;
};

static inline int tn_io_open(struct tn_io *io, const char *path, unsigned flags, uint32_t *file)
{
	return io->ops->open(io, path, flags, file);
}

static inline int tn_io_close(struct tn_io *io, uint32_t file)
{
	return io->ops->close(io, file);
}

static inline int tn_io_stat(struct tn_io *io, uint32_t file, struct tn_io_stat *st)
{
	return io->ops->stat(io, file, st);
}

static inline int tn_io_allocate(struct tn_io *io, uint32_t file, uint64_t offset, uint64_t length)
{
	return io->ops->allocate(io, file, offset, length);
}

static inline int tn_io_unlink(struct tn_io *io, const char *path)
{
	return io->ops->unlink(io, path);
}

static inline unsigned tn_io_submit(struct tn_io *io, struct tn_io_req **reqs, unsigned n)
{
	return io->ops->submit(io, reqs, n);
}

static inline unsigned tn_io_poll(struct tn_io *io, struct tn_io_req **done, unsigned max, uint64_t timeout_ns)
{
	return io->ops->poll(io, done, max, timeout_ns);
}

static inline int tn_io_cancel(struct tn_io *io, struct tn_io_req *req)
{
	return io->ops->cancel(io, req);
}

static inline int tn_io_lend(struct tn_io *io, uint32_t file, struct tn_io_lent *lent)
{
	return io->ops->lend(io, file, lent);
}

static inline int tn_io_adopt(struct tn_io *io, const struct tn_io_lent *lent, uint32_t *file)
{
	return io->ops->adopt(io, lent, file);
}

static inline int tn_io_map(struct tn_io *io, void *memory, uint64_t bytes)
{
	return io->ops->map ? io->ops->map(io, memory, bytes) : 0;
}

static inline void tn_io_unmap(struct tn_io *io, void *memory, uint64_t bytes)
{
	if (io->ops->unmap)
		io->ops->unmap(io, memory, bytes);
}

static inline void tn_io_wake(struct tn_io *io)
{
	io->ops->wake(io);
}

static inline void tn_io_destroy(struct tn_io *io)
{
	if (io)
		io->ops->destroy(io);
}

#endif
