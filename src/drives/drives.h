/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drives that directories of a store name: "nvme:0000:01:00.0" in the place of a directory is the namespace of that controller, reached
 * from user space. Here their controllers are opened and closed, and the engine made that serves them together with files.
 *
 * A namespace holds one store, of whatever instance: what follows the address in a path says nothing. One process has a controller.
 *
 * One thread makes all calls, and the engine is its own.
 */
#ifndef TN_DRIVES_DRIVES_H
#define TN_DRIVES_DRIVES_H

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/io.h"
#include "nvme/controller.h"

#define TN_DRIVE_PREFIX "nvme:"

/* Whether a directory, or a path in one, is such a drive. */
bool tn_drive_is(const char *dir);

struct tn_drives;

/**
 * struct tn_drives_opts
 * @dirs, @ndirs: those that are no drives are left alone
 * @executors:    threads that want a pair of queues of each drive for themselves; 0: one executor without a thread does, if there is one
 * @wait_ns:      for controllers that another process has; a process that was killed may still be on its way out
 * @command_ns:   by when a command has to end, before it is aborted; 0: what the drivers take (nvme/controller.h, nvme/engine.h)
 * @force_serial: the drive with this serial number is taken whatever it holds; NULL: none
 * @open:         how the controller of an address is reached, and given back; NULL: by VFIO
 */
struct tn_drives_opts {
	const char *const *dirs;
	size_t ndirs;
	uint32_t executors;
	uint64_t wait_ns, command_ns;
	const char *force_serial;
	int (*open)(void *arg, const char *address, const struct tn_nvme_port **port);
	void *open_arg;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	const struct tn_log *log;
};

/*
 * 0, and *out, which is NULL if no directory is a drive. -EINVAL: an address that is none, or twice the same, or more executors than a
 * controller has pairs for; or what opening a controller says (nvme/claim.h, nvme/vfio.h, nvme/controller.h).
 */
int tn_drives_open(const struct tn_drives_opts *opts, struct tn_drives **out);
/* The engine has gone. NULL-safe. */
void tn_drives_close(struct tn_drives *d);
uint32_t tn_drives_count(const struct tn_drives *d);
/* files: for the other directories, or NULL. It is the new engine's, after an error the caller's. 0 and *out; -ENOTSUP: there is one already; -ENOMEM. */
int tn_drives_engine(struct tn_drives *d, struct tn_io *files, uint32_t depth, struct tn_io **out);
/* Bytes that the store on this directory's drive can have at most; 0: it is no drive of these. */
uint64_t tn_drives_bytes(const struct tn_drives *d, const char *dir);
/* The drive's own engine, within the one that was made, or NULL. */
struct tn_io *tn_drives_io(const struct tn_drives *d, const char *dir);
/**
 * struct tn_drive_range - where a file lies, for who drives pairs of queues himself
 * @pair, @pairs: the first one that is not the engine's, and how many there are from there on; 0: none
 * @first, @blocks: of the namespace
 * @command_ns: as in the options
 */
struct tn_drive_range {
	struct tn_nvme *nvme;
	const struct tn_nvme_port *port;
	uint32_t pair, pairs;
	uint64_t first, blocks, command_ns;
};
/* Of an open file of the engine that was made, which is io. False: that is another engine, or the file lies in a directory. */
bool tn_drives_range(const struct tn_drives *d, const struct tn_io *io, uint32_t file, struct tn_drive_range *out);
/* What the controller of a drive says of itself, or NULL. */
const struct tn_nvme_info *tn_drives_info(const struct tn_drives *d, const char *dir);
/* Makes the drive an empty volume; the engine was made, and the drive is not open. 0, or as tn_nvme_engine_format. */
int tn_drives_format(struct tn_drives *d, const char *dir);

#endif
