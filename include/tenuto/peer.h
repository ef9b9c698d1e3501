/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks for the caches of other nodes: they find here what was computed here, and get it, without an object store between.
 *
 * The other cache is opened with a remote "peer,host=HOST,port=PORT,secret_file=FILE" (docs/remote.md). Both have the same secret in that file, by which they know
 * each other, and the same cluster_secret_file, by which they give blocks the same keys. Blocks are read only. They are copied for who asks: a peer never reaches the
 * memory of the cache. Bytes on the network are not encrypted.
 */
#ifndef TENUTO_PEER_H
#define TENUTO_PEER_H

#include <stddef.h>
#include <stdint.h>
#include <tenuto/cache.h>
#include <tenuto/error.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_peer_server;

/** Most caches that are connected at the same time. */
#define TN_PEERS_MAX 32u

/**
 * struct tn_peer_serve_opts
 * @size:        sizeof(struct tn_peer_serve_opts), set by init
 * @address:     "HOST:PORT" to listen at; no HOST: 127.0.0.1; PORT 0: any free one
 * @secret_file: a file of this user's or root's that nobody else may read, with 16 to 4,096 bytes
 * @log, @log_arg, @log_level: log callback, called from threads of the server; NULL: none
 */
struct tn_peer_serve_opts {
	size_t size;
	const char *address;
	const char *secret_file;
	tn_log_fn log;
	void *log_arg;
	enum tn_log_level log_level;
};

/** tn_peer_serve_opts_init_sized - tn_peer_serve_opts_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_peer_serve_opts_init_sized(struct tn_peer_serve_opts *opts, size_t size);

/** tn_peer_serve_opts_init - defaults: no address, no secret, no log. Any thread. */
static inline void tn_peer_serve_opts_init(struct tn_peer_serve_opts *opts)
{
	tn_peer_serve_opts_init_sized(opts, sizeof(*opts));
}

/**
 * tn_peer_serve - lets other caches read blocks of this one
 * @cache: opened by this process, which has ended what serves it before it closes it
 *
 * Served are blocks of spaces that somebody has open, from host memory or disk. At most 8 blocks are loaded at a time for all peers, with the lowest priority:
 * behind whatever the cache's own engines load. Each peer that is connected takes memory of up to 16 blocks. Any thread; starts threads.
 *
 * Return: 0 and *out; -EINVAL (address, a cache that was attached); -EADDRINUSE; -ENOENT, -EPERM, -EACCES: the secret's file; -ENOMEM.
 */
TN_API int tn_peer_serve(struct tn_cache *cache, const struct tn_peer_serve_opts *opts, struct tn_peer_server **out);

/** tn_peer_server_end - closes all connections, and waits for loads under way; NULL is fine. Not from a callback. */
TN_API void tn_peer_server_end(struct tn_peer_server *server);

/** tn_peer_server_address - "tcp:HOST:PORT" where it listens. Return: a text that lives as long as the server. */
TN_API const char *tn_peer_server_address(const struct tn_peer_server *server);

/**
 * struct tn_peer_server_stats - what was served since the start
 * @size:       set by the caller
 * @peers:      caches that are connected now
 * @refused:    connections that were refused: another secret, or too many
 * @asked_keys, @found_keys: of look-ups
 * @blocks, @bytes: that were given
 * @mapped_blocks: of them, those that a peer of the same machine copies from memory that it maps
 * @misses:     blocks that were asked for and were not there
 */
struct tn_peer_server_stats {
	size_t size;
	uint64_t peers;
	uint64_t refused;
	uint64_t asked_keys;
	uint64_t found_keys;
	uint64_t blocks;
	uint64_t bytes;
	uint64_t mapped_blocks;
	uint64_t misses;
};

/** tn_peer_server_stats - Any thread. Return: 0, -EINVAL. */
TN_API int tn_peer_server_stats(struct tn_peer_server *server, struct tn_peer_server_stats *out);

#ifdef __cplusplus
}
#endif
#endif
