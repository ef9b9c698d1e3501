/* SPDX-License-Identifier: Apache-2.0 */
/* What the guest programs share: reports in TAP, controllers, engines on them, and what all of them have moved. */
#ifndef TN_TESTS_NVME_GUEST_RIG_H
#define TN_TESTS_NVME_GUEST_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"
#include "nvme/engine.h"
#include "nvme/vfio.h"

#define GUEST_QUEUES 4u
#define GUEST_SECOND_NS 1000000000ull

struct guest_drive {
	char bdf[32];
	struct tn_nvme_vfio *vfio;
	const struct tn_nvme_port *port;
	struct tn_nvme *nvme;
	const struct tn_nvme_info *info;
	bool force; /* for its engines */
};

/* faults: that were injected (a controller disabled or pulled out, a bad place met); failed: requests that failed by them. */
struct guest {
	struct tn_rng rng;
	uint64_t seed, commands, bytes, faults, failed;
	uint32_t tests, failures;
	char why[256];
};

extern struct guest guest;

#define must(ok, ...)                                                                              \
	do {                                                                                       \
		if (!(ok)) {                                                                       \
			snprintf(guest.why, sizeof(guest.why), __VA_ARGS__);                       \
			return false;                                                              \
		}                                                                                  \
	} while (0)

void guest_begin(const char *seed);
void guest_report(const char *name, bool ok);
/* The plan, and the sums. The program's exit status. */
int guest_end(void);
bool guest_open(const char *bdf, struct guest_drive *d);
void guest_close(struct guest_drive *d);
/*
 * From now on the driver believes that the controller has no SGLs: engines and executors that are made then use PRPs. Or again what the controller
 * says: QEMU's have SGLs, whatever their options are.
 */
void guest_prps(struct guest_drive *d, bool alone);
/* An engine on blocks of the drive, through the queue. */
bool guest_engine(const struct guest_drive *d, uint32_t queue, uint64_t first, uint64_t blocks, struct tn_io **io);
/* Its counters are added to the guest's, and it is destroyed. */
void guest_engine_end(struct tn_io *io);

/* ---- guest_lists.c: prps: with PRPs alone ---- */
bool guest_engine_lists(struct guest_drive *d, bool prps);
bool guest_executor_lists(struct guest_drive *d, bool prps);

/* ---- guest_bad.c ---- */
bool guest_errors_of_the_medium(struct guest_drive *d);
bool guest_store_on_a_bad_medium(struct guest_drive *d);

/* ---- guest_log.c ---- */
bool guest_store_life(struct guest_drive *d);

/* ---- guest_unplug.c ---- */
bool guest_unplug(struct guest_drive *d);

#endif
