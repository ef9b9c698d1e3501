/* SPDX-License-Identifier: Apache-2.0 */
/* Remote stores that are named: each is written to and read from once. */
#include "doctor.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include <tenuto/remote.h>

#define STORES 8
#define WITHIN_NS UINT64_C(10000000000)

static struct {
	char name[48], todo[700];
} told[STORES];
static int ntold;

static void report_remote(void *arg, const char *name, int status, const char *text)
{
	struct doctor *d = arg;
	int i = ntold < STORES ? ntold++ : STORES - 1;

	snprintf(told[i].name, sizeof(told[i].name), "remote %s", name);
	snprintf(told[i].todo, sizeof(told[i].todo), "%s", text);
	doctor_add(d, told[i].name, status ? DOCTOR_NO : DOCTOR_YES, "blocks that other nodes find", told[i].todo, "%s",
		   status ? strerror(-status) : "it answers: an object was written and read, or a peer asked");
}

void doctor_probe_remotes(struct doctor *d, const char *remote)
{
	struct timespec now;
	int rc;

	clock_gettime(CLOCK_MONOTONIC, &now);
	rc = tn_remotes_try(remote, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + WITHIN_NS, report_remote, d);
	if (rc && ntold == 0)
		report_remote(d, "stores", rc, tn_error_last()->text);
}
