/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing the cache, its options, flushes.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/fork.h"
#include "device/device.h"
#include "device/direct.h"
#include "drives/drives.h"
#include "front/attach.h"
#include "front/hints.h"
#include "front/name_table.h"
#include "front/serve.h"
#include "region/latency.h"

#define PATH_BYTES 1024u
#define SLOW_READ_NS 500000000ull /* reads that take longer, often, make a device slow */
#define KEPT_OUT_LINE_NS 10000000000ull /* between lines that tell of blocks which were not admitted */

void tn_cache_opts_init_sized(struct tn_cache_opts *opts, size_t size)
{
	static const struct tn_cache_opts defaults = {
		.size = sizeof(defaults),
		.instance = "default",
		.max_ops = 64,
		.max_op_blocks = 8192,
		.io_depth = 128,
		.io_engine = "auto",
		.policy = "default",
		.scheduler = "slack",
		.offload = "after_reuse",
		.transfer = "auto",
		.offload_lag_ms = 1000,
		.verify = true,
		.header_cache_bytes = 32u << 20,
		.lock_timeout_ns = 5000000000u,
		.durability_ms = 1000,
		.log_level = TN_LOG_INFO,
	};

	tn_abi_init(opts, size, &defaults, sizeof(defaults));
}

/* ---- options ---------------------------------------------------------------------------------------------- */

static int range(const char *name, uint64_t value, uint64_t least, uint64_t most)
{
	if (value < least || value > most)
		return tn_fail(-EINVAL, "%s %llu: must be %llu to %llu", name, (unsigned long long)value,
			       (unsigned long long)least, (unsigned long long)most);
	return 0;
}

static int check_instance(const char *name)
{
	size_t n = name ? strlen(name) : 0;

	if (n == 0 || n > 200 || name[0] == '.' || strchr(name, '/'))
		return tn_fail(-EINVAL, "instance \"%s\": must be a plain file name of 1 to 200 bytes", name ? name : "");
	return 0;
}

/* Whether the driver has such a device is its own to say, once it is asked for memory. */
static int check_device_tier(const struct tn_cache_opts *o)
{
	int rc = 0;

	if (o->device_tier.bytes && !o->device_tier.driver)
		return tn_fail(-ENOTSUP, "device_tier.bytes %llu: there is no driver; name one that allocates and copies (tenuto/device_memory.h)",
			       (unsigned long long)o->device_tier.bytes);
	if (o->device_tier.bytes)
		rc = tn_device_check(o->device_tier.driver);
	return rc ? rc : range("device_tier.bytes", o->device_tier.bytes, 0, 1ull << 46);
}

/* Replaces zeros by their defaults and checks the rest. */
static int check_options(struct tn_cache_opts *o)
{
	const struct tn_policy_ops *policy;
	enum tn_direct_mode mode;
	int rc = 0;

	if (o->ndirs > TN_DEVICES_MAX || (o->ndirs && !o->dirs))
		return tn_fail(-EINVAL, "%zu directories: at most %u", o->ndirs, TN_DEVICES_MAX);
	if (o->ndirs == 0 && o->host_bytes == 0)
		return tn_fail(-EINVAL, "neither directories nor host_bytes: the cache could hold nothing");
	o->max_ops = o->max_ops ? o->max_ops : 64;
	o->max_op_blocks = o->max_op_blocks ? o->max_op_blocks : 8192;
	o->io_depth = o->io_depth ? o->io_depth : 128;
	o->header_cache_bytes = o->header_cache_bytes ? o->header_cache_bytes : 32u << 20;
	o->io_engine = o->io_engine ? o->io_engine : "auto";
	o->policy = o->policy ? o->policy : "default";
	o->scheduler = o->scheduler ? o->scheduler : "slack";
	o->offload = o->offload ? o->offload : "after_reuse";
	o->transfer = o->transfer ? o->transfer : "auto";
	if (strcmp(o->scheduler, "slack") != 0 && strcmp(o->scheduler, "none") != 0)
		return tn_fail(-EINVAL, "scheduler \"%.64s\": must be \"slack\" or \"none\"", o->scheduler);
	if (strcmp(o->offload, "after_reuse") != 0 && strcmp(o->offload, "on_evict") != 0 && strcmp(o->offload, "always") != 0)
		return tn_fail(-EINVAL, "offload \"%.64s\": must be \"after_reuse\", \"on_evict\" or \"always\"", o->offload);
	if ((rc = range("max_ops", o->max_ops, 1, 4096)) || (rc = range("max_op_blocks", o->max_op_blocks, 1, 1u << 20)) ||
	    (rc = range("io_depth", o->io_depth, 1, 2048)) || (rc = range("workers", o->workers, 0, 64)) ||
	    (rc = range("executors", o->executors, 0, 16)) || (rc = range("transfer_streams", o->transfer_streams, 0, TN_DEVICE_FILE_STREAMS_MAX)) ||
	    (rc = range("disk_blocks", o->disk_blocks, 0, 1u << 31)) ||
	    (rc = range("max_blocks", o->max_blocks, 0, 1u << 31)) ||
	    (rc = range("disk_bytes", o->disk_bytes, 0, 1ull << 56)) ||
	    (rc = range("host_bytes", o->host_bytes, 0, 1ull << 46)) ||
	    (rc = range("header_cache_bytes", o->header_cache_bytes, 0, 1ull << 40)) ||
	    (rc = range("lock_timeout_ns", o->lock_timeout_ns, 0, 86400ull * 1000000000u)))
		return rc;
	rc = check_instance(o->instance);
	rc = rc ? rc : check_device_tier(o);
	rc = rc ? rc : tn_direct_mode_of(o->transfer, &mode);
	return rc ? rc : tn_policy_find(o->policy, &policy);
}

/* A directory that symbolic links or mounts give another name would have its store opened twice, and in use by this process itself. */
static int check_same(const char *const *dirs, const char *const *paths, size_t n)
{
	struct stat a, b;

	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < i && !tn_drive_is(paths[i]) && stat(paths[i], &a) == 0; k++)
			if (!tn_drive_is(paths[k]) && stat(paths[k], &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
				return tn_fail(-EINVAL, "directories %s and %s are the same one: leave one of them out", dirs[k], dirs[i]);
	return 0;
}

/*
 * DIR/<instance>, made if missing. One DIR in which it cannot be made may be a lost device: the store goes on without it, or says
 * that there is none.
 */
static int make_dirs(struct tn_cache *cache)
{
	struct tn_cache_opts *o = &cache->o;
	const char *const *dirs = o->dirs;
	const char **paths;
	size_t failed = 0;
	char *text;
	int rc = 0;

	cache->dir_paths = tn_get(cache->alloc, TN_DEVICES_MAX * (sizeof(char *) + PATH_BYTES));
	if (!cache->dir_paths)
		return tn_fail(-ENOMEM, "no memory");
	paths = (const char **)(void *)cache->dir_paths;
	text = cache->dir_paths + TN_DEVICES_MAX * sizeof(char *);
	for (size_t i = 0; i < o->ndirs; i++, text += PATH_BYTES) {
		int n = snprintf(text, PATH_BYTES, "%s/%s", o->dirs[i], o->instance);

		if (n < 0 || (size_t)n >= PATH_BYTES)
			return tn_fail(-ENAMETOOLONG, "directory %.100s...: longer than %u bytes", o->dirs[i], PATH_BYTES);
		for (size_t k = 0; k < i; k++)
			if (strcmp(paths[k], text) == 0)
				return tn_fail(-EINVAL, "directory %s is given twice", o->dirs[i]);
		paths[i] = text;
	}
	for (size_t i = 0; i < o->ndirs && !o->read_only; i++) {
		if (tn_drive_is(paths[i]) || mkdir(paths[i], 0700) == 0 || errno == EEXIST)
			continue;
		failed++;
		rc = errno == ENOENT ? tn_fail(-ENOENT, "no directory %s: make it, or correct the path", dirs[i])
				     : tn_fail(-errno, "cannot make %s: %s", paths[i], strerror(errno));
	}
	o->dirs = paths;
	return failed == o->ndirs ? rc : check_same(dirs, paths, o->ndirs);
}

/* ---- open and close ----------------------------------------------------------------------------------------- */

void tn_cache_free(struct tn_cache *cache)
{
	const struct tn_alloc *a = cache->alloc;

	for (uint32_t i = 0; i < TN_SPACES_MAX; i++) {
		if (cache->spaces[i])
			tn_space_slack_destroy(cache->spaces[i], a);
		tn_put(a, cache->spaces[i], sizeof(struct tn_space));
	}
	tn_match_destroy(cache);
	tn_names_destroy(cache->names);
	tn_front_destroy(cache);
	tn_session_destroy(cache->own);
	for (uint32_t i = 0; i < 2; i++)
		tn_pins_remove(&cache->copiers.pins, &cache->word_pins[i]);
	tn_copiers_fini(&cache->copiers);
	if (cache->region.base)
		tn_region_destroy(&cache->region, a);
	tn_put(a, cache->dir_paths, TN_DEVICES_MAX * (sizeof(char *) + PATH_BYTES));
	if (cache->engines.free)
		cache->engines.free(cache->engines.devices);
	tn_drives_close(cache->engines.drives);
	if (cache->eventfd >= 0)
		close(cache->eventfd);
	pthread_mutex_destroy(&cache->lock);
	tn_put(a, cache, sizeof(*cache));
}

/* Streams of devices wait for words of layers, and raise those of events. */
static int add_words(struct tn_cache *cache)
{
	const enum tn_region_table table[] = {TN_REGION_READY, TN_REGION_EVENTS};
	int rc = 0;

	for (uint32_t i = 0; i < 2 && rc == 0; i++) {
		struct tn_region_pages pages = tn_region_pages(&cache->region, table[i]);

		rc = tn_pins_add(&cache->copiers.pins, &cache->word_pins[i], pages.first, pages.bytes);
	}
	return rc;
}

/* Where this process and the core meet. */
static int create_session(struct tn_cache *cache)
{
	struct tn_region_counts counts;
	int rc;

	tn_session_limits(cache);
	tn_session_counts(cache, &counts);
	rc = tn_region_create(&counts, cache->alloc, &cache->region);
	if (rc == 0)
		rc = add_words(cache);
	if (rc == 0)
		rc = tn_session_create(cache, &cache->region, &cache->own);
	if (rc == 0)
		tn_list_push(&cache->sessions, &cache->own->link);
	return rc;
}

/* Everything but the core: options, tables, no threads. A simulation goes on with tn_core_open by itself. */
int tn_cache_create(const struct tn_cache_opts *opts, struct tn_cache **out)
{
	const struct tn_alloc *a = &tn_alloc_system;
	struct tn_cache_opts o;
	struct tn_cache *cache;
	int rc;

	tn_cache_opts_init(&o);
	rc = tn_abi_in(TN_ABI(tn_cache_opts, log_level), &o, opts);
	if (rc == 0)
		rc = check_options(&o);
	if (rc)
		return rc;
	cache = tn_get(a, sizeof(*cache));
	if (!cache)
		return tn_fail(-ENOMEM, "no memory");
	cache->o = o;
	cache->alloc = a;
	cache->clock = tn_clock_system;
	cache->engines = (struct tn_engines){
		.open = tn_devices_open,
		.make = tn_engine_open,
		.opts = &cache->o,
		.alloc = a,
		.clock = &cache->clock,
		.log = &cache->log,
	};
	memcpy(cache->makers, tn_tier_makers, sizeof(cache->makers));
	cache->tiers = (struct tn_tier_env){
		.o = &cache->o,
		.alloc = a,
		.clock = &cache->clock,
		.log = &cache->log,
		.copiers = &cache->copiers,
		.slow_read_ns = SLOW_READ_NS,
	};
	cache->save_idle_ns = TN_SAVE_IDLE_NS;
	cache->kept_out_lines.period_ns = KEPT_OUT_LINE_NS;
	cache->log = (struct tn_log){o.log, o.log_arg, o.log_level};
	cache->messages = (struct tn_messages){.opener = getpid(), .opener_mark = tn_process_mark(), .cache = cache};
	pthread_mutex_init(&cache->lock, NULL);
	tn_copiers_init(&cache->copiers, a, &cache->log, &cache->clock);
	tn_list_init(&cache->memories);
	tn_list_init(&cache->loads);
	tn_list_init(&cache->saves);
	tn_list_init(&cache->places.waiting);
	cache->eventfd = tn_above_streams(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	tn_list_init(&cache->sessions);
	rc = cache->eventfd < 0 ? tn_fail(-errno, "eventfd: %s", strerror(errno)) : create_session(cache);
	if (rc == 0)
		rc = tn_match_create(cache);
	if (rc == 0)
		rc = tn_front_create(cache);
	if (rc) {
		tn_cache_free(cache);
		return rc;
	}
	*out = cache;
	return 0;
}

int tn_cache_start(struct tn_cache *cache)
{
	int rc = make_dirs(cache);

	if (rc == 0)
		rc = tn_owner_start(cache);
	if (rc)
		tn_cache_free(cache);
	else
		cache->opened_ns = tn_now_ns(&cache->clock);
	return rc;
}

int tn_cache_open(const struct tn_cache_opts *opts, struct tn_cache **out)
{
	struct tn_cache *cache;
	int rc;

	if (!opts || !out)
		return tn_fail(-EINVAL, "tn_cache_open: opts or out is missing");
	rc = tn_cache_create(opts, &cache);
	if (rc == 0)
		rc = tn_cache_start(cache);
	if (rc)
		return rc;
	*out = cache;
	return 0;
}

int tn_cache_close(struct tn_cache *cache)
{
	struct tn_error error;
	int rc;

	if (!cache)
		return 0;
	if (tn_forked(cache))
		return tn_error_last()->code; /* its memory goes with the child */
	if (cache->attached) {
		/* Of an owner that is gone pages may stay -EBUSY for good, and with them a load, its pool and its memory. */
		assert((cache->nmemories == 0 || tn_region_is_gone(&cache->region)) && "tn_memory_unregister all memories before tn_cache_close");
		tn_attached_stop(cache);
		tn_memories_abandon(cache);
		tn_detach(cache);
		return 0;
	}
	tn_server_stop(cache);
	tn_hints_stop(cache);
	assert(cache->nmemories == 0 && "tn_memory_unregister all memories before tn_cache_close");
	tn_owner_stop(cache);
	rc = cache->open_status;
	error = cache->open_error;
	tn_cache_free(cache);
	return rc ? tn_fail_at(error.where, "", rc, "%s", error.text) : 0;
}

int tn_flush(struct tn_cache *cache, uint64_t deadline_ns)
{
	struct tn_flush_waiter *w;
	uint64_t begun;
	int rc;

	if (!cache)
		return tn_fail(-EINVAL, "tn_flush: no cache");
	if (tn_forked(cache))
		return tn_error_last()->code;
	begun = tn_now_ns(&cache->clock);
	if (cache->attached) {
		rc = tn_remote_flush(cache, deadline_ns);
	} else {
		w = tn_flush_begin(&cache->flushes);
		rc = w ? tn_flush_wait(w, deadline_ns) : tn_fail(-ENOMEM, "tn_flush: no memory");
	}
	tn_latency_add(&cache->region, TN_LATENCY_FLUSH, TN_TIER_NONE, tn_now_ns(&cache->clock) - begun);
	return rc;
}
