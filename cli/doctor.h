/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto doctor` from the inside: a list of findings, filled by probes.
 *
 * A probe never fails. If it cannot look (no /sys, no permission), it reports the thing as unknown or absent.
 */
#ifndef TENUTO_CLI_DOCTOR_H
#define TENUTO_CLI_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DOCTOR_MAX 64

enum doctor_state { DOCTOR_YES, DOCTOR_PARTLY, DOCTOR_NO };

/**
 * struct doctor_finding - one line of the report
 * @name:  what was looked for
 * @value: what is there
 * @gives: what Tenuto gains from it
 * @todo:  how to get (more of) it; empty if there is nothing to do
 */
struct doctor_finding {
	const char *name;
	enum doctor_state state;
	char value[160];
	const char *gives;
	const char *todo; /* outlives the list */
};

struct doctor {
	const char *dir;
	struct doctor_finding f[DOCTOR_MAX];
	size_t n;
};

/* Appends a finding; todo is kept only where the state is not DOCTOR_YES. */
void doctor_add(struct doctor *d, const char *name, enum doctor_state state, const char *gives, const char *todo,
		const char *value, ...) __attribute__((format(printf, 6, 7)));

/* The first line of a file without its end, or "" if it cannot be read. */
void doctor_read_line(const char *path, char *line, size_t bytes);
/* A number from a file of /sys or /proc, or fallback. */
uint64_t doctor_read_number(const char *path, uint64_t fallback);

/* doctor_kernel.c: kernel, io_uring, memory. */
void doctor_probe_kernel(struct doctor *d);
/* doctor_disk.c: the directory, the disk under it, NVMe devices. */
void doctor_probe_disk(struct doctor *d);
/* doctor_device.c: IOMMU, VFIO, NVMe drives from user space, CUDA, GDS, UCX. */
void doctor_probe_devices(struct doctor *d);
/* doctor_plugins.c: the directories of plugins, what is in them, their devices. */
void doctor_probe_plugins(struct doctor *d);

/* doctor_remote.c: remote stores, as of struct tn_cache_opts; each gets an object. */
void doctor_probe_remotes(struct doctor *d, const char *remote);

/**
 * struct doctor_measure - random reads that start at multiples of 16 KiB, and 4 KiB beside them
 * @read_bytes: size of one read
 */
struct doctor_measure {
	uint64_t read_bytes;
	double aligned_gbps;
	double shifted_gbps;
};

/* doctor_measure.c: measures for a few seconds on a temporary file in dir; 0, or -errno with the failed step in *why. */
int doctor_measure(const char *dir, struct doctor_measure *m, const char **why);

#endif
