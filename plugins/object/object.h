/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backend of the transfer agent between memory and the objects of a store: what the clients of stores have in common.
 *
 * backend.c makes transfers out of the pieces of a job. A client moves them: plugins/s3 and plugins/redis each define object_client, and are built with
 * backend.c and with OBJECT_PLUGIN, the plugin's name. An object is read by ranges and written whole.
 *
 * Threads: any; `done` and `failed` of a transfer come from the thread of its client, which holds no lock then.
 */
#ifndef TN_PLUGIN_OBJECT_OBJECT_H
#define TN_PLUGIN_OBJECT_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <tenuto/xfer_backend.h>

/** Bytes of a reason in words, with the zero. */
#define OBJECT_WHY_BYTES 400u
#define OBJECT_NO_DEADLINE UINT64_MAX

enum object_op {
	OBJECT_GET,  /**< bytes of an object, from @offset on */
	OBJECT_PUT,  /**< the whole object */
	OBJECT_HEAD, /**< whether it is there, and how long */
};

/**
 * struct object_transfer - zero it, then set what is the caller's; it lies in the caller's memory from post until `done`
 * @op:     enum object_op
 * @key:    of the object
 * @offset: OBJECT_GET: of the first byte
 * @bytes:  how many; OBJECT_GET: at least 1, and fewer in the store are -ENODATA
 * @iov, @niov: where they go to or come from
 * @if_absent: OBJECT_PUT: -EEXIST if there is such an object. -EIO if it is found after a try that failed, because that try may have made it
 * @stop:   becomes 1 (atomic) when the transfer is to end early, before the client's poke; NULL: nobody stops it
 * @deadline_ns: CLOCK_MONOTONIC; OBJECT_NO_DEADLINE: none
 * @arg:    the caller's own
 * @failed: a try has failed, whether or not another one follows: why, in words, until it returns; NULL: nobody asks
 * @done:   the end: nothing reads or writes the buffers any more
 * @code:   0; -ENOENT: no such object; -EACCES: the store refuses; -EEXIST; -ENODATA: short; -EIO: damaged, or the store fails; -ECONNREFUSED, -EHOSTUNREACH; -ENOSPC;
 *          -ETIMEDOUT: the deadline, and no try has failed; -ECANCELED
 * @moved:  bytes that are in their place; of OBJECT_PUT all or none
 * @tries:  that were begun, of a transfer that is one request
 * @object_bytes: OBJECT_HEAD: how long it is
 * @own:    the client's, from prepare until forget
 */
struct object_transfer {
	enum object_op op;
	bool if_absent;
	int32_t code;
	uint32_t niov;
	uint32_t tries;
	const char *key;
	uint64_t offset;
	uint64_t bytes;
	const struct iovec *iov;
	const uint32_t *stop;
	uint64_t deadline_ns;
	void *arg;
	void (*failed)(struct object_transfer *t, const char *why);
	void (*done)(struct object_transfer *t);
	uint64_t moved;
	uint64_t object_bytes;
	void *own;
};

/**
 * struct object_client_ops - a client of a store
 * @key_max: most bytes of a key
 * @create:  a client by the parameters of a spec; connects to nobody. 0, *if_absent (of all writes) and *client; or -errno by object_fail
 * @destroy: no transfer is left
 * @prepare: takes the memory that a transfer needs; op, key and bytes are set. 0; -EINVAL; -ENOMEM
 * @forget:  gives it back
 * @post:    begins a prepared transfer; may be called again after `done`
 * @poke:    the stop words of transfers are looked at; any lock may be held
 */
struct object_client_ops {
	uint32_t key_max;
	int (*create)(const struct tn_xfer_param *params, uint32_t n, bool *if_absent, void **client);
	void (*destroy)(void *client);
	int (*prepare)(void *client, struct object_transfer *t);
	void (*forget)(struct object_transfer *t);
	void (*post)(struct object_transfer *t);
	void (*poke)(void *client);
};

/** object_client - of the plugin that this is built into */
extern const struct object_client_ops object_client;

/** object_wait - prepares, posts, sleeps until the end, forgets; not from `done`. Sets done. Return: the transfer's code. */
int object_wait(void *client, struct object_transfer *t);

/** object_number - a whole number of a parameter, up to @most. Return: 0; -EINVAL by object_fail. */
int object_number(const struct tn_xfer_param *param, uint64_t most, uint64_t *out);

/** object_fail - keeps a text for object_error; returns @code */
int object_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** object_error - why the last call of this thread that failed has failed */
const char *object_error(void);

/** object_now_ns - CLOCK_MONOTONIC */
uint64_t object_now_ns(void);

#endif
