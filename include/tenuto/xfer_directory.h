/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a directory of agents' metadata does, such as etcd: a const table of functions, in a plugin of kind TN_PLUGIN_XFER_DIRECTORY (tenuto/plugin.h).
 *
 * An entry is bytes under the name of an agent and a label. It goes when its agent takes it back, and some seconds after its agent's process has died.
 * A directory does not look into the bytes.
 *
 * Threads: any, at the same time, but for create and destroy. Deadlines are CLOCK_MONOTONIC in ns. Errors are -errno, and error says them in words.
 */
#ifndef TENUTO_XFER_DIRECTORY_H
#define TENUTO_XFER_DIRECTORY_H

#include <stddef.h>
#include <stdint.h>
#include <tenuto/xfer_backend.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TN_XFER_DIRECTORY_ABI 1u

/**
 * struct tn_xfer_directory_ops - a directory
 * @size: sizeof(struct tn_xfer_directory_ops)
 * @abi:  TN_XFER_DIRECTORY_ABI
 * @name: the plugin's
 *
 * @create:  0 and *out; -EINVAL: a parameter that it does not know. Asks no server
 * @destroy: entries that were put go, as far as the server answers soon
 * @put:     replaces what was there. 0; -E2BIG; -ECONNREFUSED, -EHOSTUNREACH, -ETIMEDOUT: no server answers; -EIO
 * @get:     how many bytes the entry has (more than @max: nothing was written); -ENOENT: there is none; else as put
 * @remove:  0, also if there is none; else as put
 * @error:   why the last call of this thread that failed has failed
 */
struct tn_xfer_directory_ops {
	size_t size;
	uint32_t abi;
	uint32_t reserved;
	const char *name;
	int (*create)(const struct tn_xfer_param *params, uint32_t n, void **out);
	void (*destroy)(void *directory);
	int (*put)(void *directory, const char *agent, const char *label, const void *entry, size_t bytes, uint64_t deadline_ns);
	int64_t (*get)(void *directory, const char *agent, const char *label, void *out, size_t max, uint64_t deadline_ns);
	int (*remove)(void *directory, const char *agent, const char *label, uint64_t deadline_ns);
	const char *(*error)(void);
};

#ifdef __cplusplus
}
#endif
#endif
